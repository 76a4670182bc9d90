"""The score on held-out training pictures, by which the best checkpoint is chosen."""

from __future__ import annotations

from collections.abc import Set
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from velogan.data.config import DataConfig
from velogan.data.sets.loader import window
from velogan.data.sets.sources import FEWEST, Sources
from velogan.evaluation.features import JUDGE
from velogan.evaluation.pictures import open_side
from velogan.evaluation.samples import common_size, middles, translated_and_third
from velogan.methods.base import Method, Spec, Views
from velogan.metrics.failures import signs
from velogan.metrics.sliced import distance_of_maps, sliced_wasserstein
from velogan.networks.pretrained import LITE_SHA256, find_lite, frozen_features, in_three
from velogan.types import Direction

SCORE = "validation/distance"
"""The name, in the log and in best.json, of the figure that chooses; lower is better."""

FEATURE_SCORE = "validation/feature_distance"
"""The figure that chooses where discriminators use a trained network's features; lower is better, not comparable with
`SCORE`."""

NOTHING = "validation/nothing"
"""The figure that chooses, of the inputs themselves in place of translations; behind it may stand a direction."""

_AT_ONCE = 8
"""Pictures that the trained network looks at together."""


class Validation:
    """Scores `views`, averaged generators by direction, on both domains' held-out pictures.

    The score is the sliced Wasserstein distance from translations to real pictures, mean over scales and directions.
    Where a discriminator looks at a trained network's features, the same distance over such maps is logged too, and
    chooses: patches of pixels did not tell stripes from grain (benchmarks/LOG.md). The maps are another network's where
    that is installed, which no discriminator taught. Both compare sets only, and do not measure how much of a picture's
    content a translation keeps, since any weight between the two would be arbitrary.
    Reconstructions of an autoencoder that is trained alone are compared with their own domain. Beside the score, the
    mean absolute difference of the cycle or of the reconstruction is logged, and signs of failure
    (`metrics.failures`). `on` names the pictures; `missing` says why there are none.
    """

    def __init__(
        self, method: Method, spec: Spec, sources: Sources, views: Views, *, data: DataConfig, device: str, bf16: bool
    ):
        self.method, self.spec, self.views, self.data = method, spec, views, data
        self.device, self.bf16 = device, bf16
        self.features = _features({one.features for one in spec.discriminators.values() if "projected" in one.network})
        self.name = FEATURE_SCORE if self.features else SCORE
        self.on = self.missing = ""
        if sources.a.validation is None or sources.b.validation is None:
            few = min(len(side.train.names) for side in (sources.a, sources.b)) < FEWEST
            why = f"a domain has fewer than {FEWEST} training pictures" if few else "data.validation=0"
            self.missing = f"no pictures are held out ({why}): no checkpoint will be chosen as best"
            return
        try:
            a = open_side(sources.a.validation, sources.a, data)
            b = open_side(sources.b.validation, sources.b, data)
        except ValueError as error:
            self.missing = f"no checkpoint will be chosen as best: {error}"
            return
        shapes = [*a.shapes, *b.shapes]  # training sees a window of each
        size = common_size([*shapes, *(window(data, shape) for shape in shapes)], spec.multiple)
        self.a, self.b = middles(a, size), middles(b, size)
        by = f", by {self.features}" if self.features else ""
        self.on = f"{len(self.a)} held-out {sources.a.name} and {len(self.b)} held-out {sources.b.name}{by}"
        self._seen: tuple[list[Tensor], list[Tensor]] | None = None
        self._nothing: dict[str, float] | None = None

    def score(self) -> dict[str, Any]:
        """Figures by name for the log; that of `name` chooses the best. Unit of distances: deviation of real ones."""
        ways = self.method.directions
        word = "reconstruction" if self.views.reconstruction else "cycle"
        distances, seen, differences, found = {}, {}, {}, {}
        for way, real, target in (("a2b", self.a, self.b), ("b2a" if "b2a" in ways else "b2b", self.b, self.a)):
            fake, third = translated_and_third(real, way, self.views, device=self.device, bf16=self.bf16)
            if way in ways:
                wanted = target if self.views.translates else real
                distances[f"{SCORE}_{way}"] = self.distance(way, fake, wanted)
                if self.features:
                    expected = self._real()[wanted is self.b]
                    seen[f"{FEATURE_SCORE}_{way}"] = distance_of_maps(self._maps(fake), expected)
                if self.views.translates:
                    found |= {f"failure/{name}_{way}": value for name, value in signs(fake, real, target).items()}
            if third is not None:
                differences[f"validation/{word}_{way[0]}"] = (third - real).abs().mean().item()
        if seen:
            seen = {FEATURE_SCORE: fmean(seen.values()), **seen}
        return {SCORE: fmean(distances.values()), **distances, **seen, **differences, **found, **self.nothing()}

    def nothing(self) -> dict[str, float]:
        """The figure of `name` of the inputs as they are; none where they cannot stand for translations."""
        if self._nothing is None:
            self._nothing = {}
            if self.views.translates and self.a.shape[1:] == self.b.shape[1:]:
                a, b = self._real() if self.features else (self.a, self.b)
                of = distance_of_maps if self.features else _of_patches
                pairs = {"a2b": (a, b), "b2a": (b, a)}
                found = {f"{NOTHING}_{way}": of(*pairs[way]) for way in self.method.directions}  # pyright: ignore[reportArgumentType]
                self._nothing = {NOTHING: fmean(found.values()), **found}
        return self._nothing

    def distance(self, way: Direction, fake: Tensor, wanted: Tensor) -> float:
        """How far the translations `fake` are from the pictures `wanted`, by patches."""
        return _of_patches(fake, wanted)

    def _real(self) -> tuple[list[Tensor], list[Tensor]]:
        """The maps of both domains' held-out pictures, which stay the same."""
        if self._seen is None:
            self._seen = self._maps(self.a), self._maps(self.b)
        return self._seen

    @torch.inference_mode()
    def _maps(self, images: Tensor) -> list[Tensor]:
        """The trained network's feature maps `(N, c, h, w)` of images `(N, C, H, W)` in [-1, 1], the finest first."""
        assert self.features
        device = torch.device(self.device)
        see = frozen_features(self.features, device).maps
        parts = [see(in_three(some.to(device))) for some in images.split(_AT_ONCE)]
        return [torch.cat([part.float().cpu() for part in same]) for same in zip(*parts)]


def _of_patches(fake: Tensor, wanted: Tensor) -> float:
    return fmean(sliced_wasserstein(fake, wanted))


def _features(teachers: Set[str]) -> str | None:
    """The network whose maps are compared, where discriminators look through `teachers`: the judge, if it is there.

    A teacher that is no EfficientNet-Lite is for pictures that the judge does not know, and judges itself.
    """
    judges = JUDGE not in teachers and teachers <= set(LITE_SHA256) and find_lite(JUDGE) is not None
    return JUDGE if teachers and judges else min(teachers, default=None)
