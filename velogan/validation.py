"""How good a run's generators are on training pictures held out for that: what the best checkpoint is chosen by."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from torch import nn

from velogan.config import Config
from velogan.data.cache import Domain, open_domain
from velogan.data.loader import window
from velogan.data.sources import FEWEST, Side, Sources
from velogan.metrics.sliced import sliced_wasserstein
from velogan.samples import middles, there_and_back

SCORE = "validation/distance"
"""The name, in the log and in best.json, of the figure that chooses; lower is better."""


class Validation:
    """Scores `nets` (`G_A`, `G_B`; averaged ones) on both domains' held-out pictures.

    The score is the sliced Wasserstein distance from translations to real pictures, mean over scales and directions.
    It is a distance of sets and nothing else: how much of a picture's content a translation keeps is not in it, since
    any weight of the two against each other would be arbitrary. The cycle's mean absolute difference is given beside
    it for the reader. `on` says which pictures; `missing`, where there are none, why not.
    """

    def __init__(self, config: Config, sources: Sources, nets: Mapping[str, nn.Module]):
        self.nets, self.config = nets, config
        self.on = self.missing = ""
        if sources.a.validation is None or sources.b.validation is None:
            few = min(len(side.train.names) for side in (sources.a, sources.b)) < FEWEST
            why = f"a domain has fewer than {FEWEST} training pictures" if few else "data.validation=0"
            self.missing = f"no pictures are held out ({why}): no checkpoint will be chosen as best"
            return
        try:
            a, b = (_open(side, config) for side in (sources.a, sources.b))
        except ValueError as error:
            if config.data.strict:
                raise
            self.missing = f"no checkpoint will be chosen as best: {error}"
            return
        size = _common_size([a, b], config)
        self.a, self.b = middles(a, size), middles(b, size)
        self.on = f"{len(self.a)} held-out {sources.a.name} and {len(self.b)} held-out {sources.b.name}"

    def score(self) -> dict[str, float]:
        """Figures by name for the log; `SCORE` is the one to choose by, distances in deviations of real pixels."""
        g_a, g_b = self.nets["G_A"], self.nets["G_B"]
        fake_b, back_a = there_and_back(self.a, g_a, g_b, config=self.config)
        fake_a, back_b = there_and_back(self.b, g_b, g_a, config=self.config)
        a2b, b2a = fmean(sliced_wasserstein(fake_b, self.b)), fmean(sliced_wasserstein(fake_a, self.a))
        return {
            SCORE: (a2b + b2a) / 2,
            f"{SCORE}_a2b": a2b,
            f"{SCORE}_b2a": b2a,
            "validation/cycle_a": (back_a - self.a).abs().mean().item(),
            "validation/cycle_b": (back_b - self.b).abs().mean().item(),
        }


def _open(side: Side, config: Config) -> Domain:
    assert side.validation is not None
    return open_domain(side.validation, config.data, test=True, **config.reading(side.letter))


def _common_size(domains: list[Domain], config: Config) -> tuple[int, int]:
    """The largest (height, width) that all pictures have and training might see."""
    multiple = config.generator.multiple
    sizes = [window(config.data, shape) for domain in domains for shape in domain.shapes]
    sizes += [shape[:2] for domain in domains for shape in domain.shapes]
    height, width = (max(min(sides) // multiple, 1) * multiple for sides in zip(*sizes))
    return height, width
