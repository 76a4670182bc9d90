"""The figures of one translator, with those of real pictures and of doing nothing for comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from velogan.data.config import DataConfig
from velogan.data.pictures.values import PixelFormat, denormalize
from velogan.data.sets.pair import Task
from velogan.data.sets.sources import Side
from velogan.evaluation import each
from velogan.evaluation.features import FeatureNetwork
from velogan.evaluation.pictures import Pictures, Real, Split, judged, open_answers, open_side, sample
from velogan.metrics.figures import (
    Figure,
    Seen,
    class_shares,
    distances,
    is_share,
    label_figures,
    lower_is_better,
    meaning,
    means,
    patches_of,
)
from velogan.metrics.labels import intersection_over_union
from velogan.translate.model import Translator

SPLITS: dict[Split, str] = {
    "test": "",
    "validation": "; on held-out training pictures, by which the best checkpoint was chosen",
    "train": "; on training pictures, which the run has seen: too good for new ones",
}
"""What a figure's sentence says of the pictures."""


@dataclass(frozen=True)
class References:
    """Figures of one direction by name: of real pictures against those that `real_of` names, and of doing nothing."""

    real: dict[str, float]
    baseline: dict[str, float]
    real_of: str


@dataclass(frozen=True)
class Scorer:
    """Scores translators on pictures that are read as `data` says.

    `networks` give features, `classes` are counted, `seed` draws at most `limit` pictures.
    """

    data: DataConfig
    networks: Sequence[FeatureNetwork]
    classes: Mapping[str, int]
    limit: int | None
    seed: int
    task: Task

    def open(self, side: Side, other: Side) -> Real:
        """Prepare one domain's pictures, with true translations and masks if there are some, and look at them."""
        split, whole = judged(side)
        folder = sample(whole, self.limit, self.seed)
        domain = open_side(folder, side, self.data, progress=self.task(f"preparing {side.name}"))
        pictures = Pictures.of(domain)
        seen = self.look(pictures, f"looking at {side.name}")
        answers = open_answers(side, other, domain.names, self.data, task=self.task)
        return Real(side, split, domain.names, pictures, answers, domain.skipped, seen)

    def bounds(self, source: Real, target: Real) -> References:
        """The figures of real pictures and of doing nothing, as translations from `source` to `target`."""
        real, real_of = self._real(len(source.pictures), target)
        unrelated = each.unrelated_structure(source, target, self.seed)
        if unrelated is not None:
            real["structure"] = unrelated
        given = source.pictures.like(target.pictures)
        nothing: dict[str, Figure] = {}
        if given is not None:
            same = given.format.channels == source.pictures.format.channels
            seen = source.seen if same else self.look(given, f"looking at {source.side.name}")
            nothing = self.figures(source, target, given, seen, resample=False)
        return References(real, {name: figure.value for name, figure in nothing.items()}, real_of)

    def _real(self, count: int, target: Real) -> tuple[dict[str, float], str]:
        """Figures of real pictures of the target against others: `count` of them, or fewer if there are not so many."""
        side, name = target.side, target.side.name
        shares = class_shares(target.seen, self.classes, seed=self.seed)
        if target.split == "train" or not side.train.names:
            figures, real_of = halves(target.seen, self.seed), f"one half of the {name} against the other"
        else:
            folder, progress = sample(side.train, count, self.seed), self.task(f"preparing train {name}")
            domain = open_side(folder, side, self.data, progress=progress)
            train = self.look(Pictures.of(domain), f"looking at train {name}")
            figures, real_of = distances(train, target.seen, seed=self.seed), f"{len(domain)} train {name}"
        return {key: figure.value for key, figure in (figures | shares).items()}, real_of

    def score(self, translator: Translator, source: Real, target: Real, bounds: References) -> Iterator[dict[str, Any]]:
        """The entries of one translator in `scores`, without the keys that name the translator."""
        word = source.side.name
        fakes = self.made(translator, source, target.pictures.format, f"translating {word}")
        seen = self.look(fakes, f"looking at translated {word}")
        for name, figure in self.figures(source, target, fakes, seen, resample=True).items():
            real, baseline = bounds.real.get(name, math.nan), bounds.baseline.get(name, math.nan)
            higher = not real < baseline if is_share(name) else not lower_is_better(name)
            yield {
                "name": name,
                **value_of(figure),
                "real": finite(real),
                "baseline": finite(baseline),
                "images_real": len(target.pictures) if figure.images is None else 0,
                "images_fake": len(fakes) if figure.images is None else figure.images,
                "better": "higher" if higher else "lower",
                "split": source.split,
                "what": self._sentence(name, source, target, bounds),
            } | self._classes(name, source, fakes)

    def score_reconstruction(self, autoencoder: Translator, source: Real) -> Iterator[dict[str, Any]]:
        """The entries of the reconstructions that a translator's encoder and decoder make of its input."""
        word = source.side.name
        backs = self.made(autoencoder, source, source.pictures.format, f"reconstructing {word}")
        for name, figure in means(each.of_reconstructions(source.pictures, backs), seed=self.seed).items():
            yield {
                "name": name,
                **value_of(figure),
                "real": None,
                "baseline": None,
                "images_real": 0,
                "images_fake": len(backs),
                "better": "higher",
                "split": source.split,
                "what": f"{meaning(name, source=word, target=word, classes={})}{SPLITS[source.split]}.",
            }

    def made(self, translator: Translator, source: Real, form: PixelFormat, phase: str) -> Pictures:
        """The source's pictures through `translator`, computed and rounded as the command `translate` does."""

        def translate(images: Tensor) -> Tensor:
            out = translator.translate_fast(images, rounded=form.dtype == "uint8")
            return denormalize(out, form.dtype, form.range).permute(0, 2, 3, 1).contiguous()

        made = source.pictures.map(translate, self.task(phase))
        return Pictures([one.numpy() for one in made], replace(form, channels=made[0].shape[-1]))

    def _classes(self, name: str, source: Real, fakes: Pictures) -> dict[str, Any]:
        """The agreement of each label, beside a figure that is a mean over labels."""
        labels = source.answers.labels
        if name != "label_iou" or labels is None:
            return {}
        whole = each.confusions(source, fakes, labels).sum(dim=0)
        held, right = whole.sum(dim=1), whole.diagonal()
        colours = ((labels + 1) * 127.5).round().int().tolist()
        return {
            "classes": [
                {
                    "colour": "#" + "".join(f"{level:02x}" for level in colour),
                    "share": finite((held[index] / held.sum()).item()),
                    "accuracy": finite((right[index] / held[index]).item()),
                    "iou": finite(intersection_over_union(whole)[index].item()),
                }
                for index, colour in enumerate(colours)
            ]
        }

    def _sentence(self, name: str, source: Real, target: Real, bounds: References) -> str:
        a, b = source.side.name, target.side.name
        what = meaning(name, source=a, target=b, classes=self.classes)
        if name == "structure":
            what += f"; real against real: {b} that have nothing to do with the input"
        elif name in bounds.real:
            what += f"; real against real: {f'real {b}' if is_share(name) else bounds.real_of}"
        return f"{what}{SPLITS[source.split]}."

    def figures(self, source: Real, target: Real, fakes: Pictures, seen: Seen, *, resample: bool) -> dict[str, Figure]:
        """All figures of `fakes`, which stand for translations of the source's pictures."""
        labels = source.answers.labels
        figures = means(each.of_translations(source, fakes), seed=self.seed)
        if labels is not None:
            figures |= label_figures(each.confusions(source, fakes, labels), seed=self.seed)
        figures |= distances(seen, target.seen, seed=self.seed, resample=resample)
        return figures | class_shares(seen, self.classes, seed=self.seed)

    def look(self, pictures: Pictures, phase: str) -> Seen:
        """The networks' features and logits of pictures, and patches if all pictures are of one size."""
        pictures = pictures.shown()
        one_size = len({array.shape for array in pictures.arrays}) == 1

        def seen_by_all(images: Tensor) -> list[dict[str, Tensor]]:
            found = {name: rows for network in self.networks for name, rows in network.look(images).items()}
            found |= patches_of(images, among=len(pictures)) if one_size else {}
            return [{name: rows[index] for name, rows in found.items()} for index in range(len(images))]

        seen = pictures.map(seen_by_all, self.task(phase))
        return {name: torch.stack([one[name] for one in seen]) for name in seen[0]}


def halves(seen: Seen, seed: int) -> dict[str, Figure]:
    """Distances between two random halves of a set; none for fewer than 4 pictures."""
    count = len(next(iter(seen.values()), ()))
    if count < 4:
        return {}
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    one, other = ({name: rows[half] for name, rows in seen.items()} for half in order.chunk(2))
    return distances(one, other, seed=seed)


def quiet(_name: str) -> Callable[[int, int], None]:
    """A `Task` that shows nothing."""
    return lambda _done, _total: None


def finite(value: float) -> float | None:
    """The value, or None if it is infinite or NaN, which JSON cannot hold."""
    return value if math.isfinite(value) else None


def value_of(figure: Figure) -> dict[str, Any]:
    """What `scores` keeps of a figure itself."""
    interval = figure.interval_95
    return {"value": finite(figure.value), "interval_95": None if interval is None else list(interval)}
