"""The figures of one translator, beside those of real pictures and of doing nothing, over prepared pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from velogan.config import Config
from velogan.data.domains.cache import Domain, open_domain
from velogan.data.domains.sources import Folder, Side
from velogan.data.pictures.values import PixelFormat, from_unit, to_channels, to_unit
from velogan.deploy.model import Translator
from velogan.evaluation.features import FeatureNetwork, Task
from velogan.metrics.figures import (
    Figure,
    Seen,
    class_shares,
    compare_to_truth,
    distances,
    is_share,
    label_figures,
    lower_is_better,
    meaning,
    means,
    patches_of,
    rows,
)
from velogan.metrics.labels import confusion, find_labels, intersection_over_union
from velogan.metrics.pixel import psnr, ssim, structure

_BATCH_SIZE = 16
_SMALLEST_SIDE = 11  # of pictures whose structure can be compared
_LABEL_MAPS = 64  # that their colours are looked for in
_MOST_DB = 60.0  # what a picture's PSNR counts for at most: one that is left exactly as it was must not decide the mean


Split = Literal["test", "validation", "train"]

SPLITS: dict[Split, str] = {
    "test": "",
    "validation": "; on held-out training pictures, by which the best checkpoint was chosen",
    "train": "; on training pictures, which the run has seen: too good for new ones",
}
"""What a figure's sentence says of the pictures."""


@dataclass(frozen=True)
class Pictures:
    """Pictures `(H, W, C)` at their own depth, and what their values stand for."""

    arrays: Sequence[np.ndarray]
    format: PixelFormat

    def __len__(self) -> int:
        return len(self.arrays)

    def floats(self, *indices: int) -> Tensor:
        """Some pictures of equal size as `(B, C, H, W)` in [-1, 1]."""
        pixels = torch.from_numpy(np.stack([self.arrays[index] for index in indices]))
        return to_unit(pixels, self.format.range).permute(0, 3, 1, 2)

    def like(self, other: Pictures) -> Pictures | None:
        """The same pictures with the other's channels; None where these cannot be had."""
        channels = other.format.channels
        try:
            arrays = [to_channels(array, channels) for array in self.arrays]
        except ValueError:
            return None
        return Pictures(arrays, PixelFormat(channels, self.format.dtype, self.format.range))


@dataclass(frozen=True)
class Answers:
    """True translations by the number of the picture; masks of the object, `(1, 1, H, W)`, where there are some.

    `labels`: the colours of the truth, `(K, C)` in [-1, 1], where it is label maps.
    """

    truths: Mapping[int, Tensor]
    masks: Mapping[int, Tensor]
    labels: Tensor | None


@dataclass(frozen=True)
class Real:
    """The pictures of one domain, of the `split` that `judged` chooses.

    `seen` is what is seen of them; `skipped` names unreadable files, with the reason.
    """

    side: Side
    split: Split
    names: tuple[str, ...]
    pictures: Pictures
    answers: Answers
    skipped: tuple[tuple[str, str], ...]
    seen: Seen

    def counts(self) -> dict[str, Any]:
        """What was compared, for the protocol."""
        sizes = sorted(list(array.shape[:2]) for array in self.pictures.arrays)
        form = self.pictures.format
        return {
            "name": self.side.name,
            "split": self.split,
            "images": len(self.pictures),
            "unreadable": [{"name": name, "reason": reason} for name, reason in self.skipped],
            "with_truth": len(self.answers.truths),
            "smallest_and_largest_px": [sizes[0], sizes[-1]],
            "channels": form.channels,
            "dtype": form.dtype,
            "range": form.range,
        }


@dataclass(frozen=True)
class Bounds:
    """One direction's figures by name: of real pictures against others (`real_of` says which), and of doing nothing."""

    real: dict[str, float]
    baseline: dict[str, float]
    real_of: str


@dataclass(frozen=True)
class Scorer:
    """How to score: preparation of the pictures, the networks to look with, classes to count, sample."""

    config: Config
    networks: Sequence[FeatureNetwork]
    classes: Mapping[str, int]
    limit: int | None
    seed: int
    task: Task

    def open(self, side: Side, other: Side) -> Real:
        """Prepare one domain's pictures, with truth and masks where they are kept, and look at them."""
        split, whole = judged(side)
        folder = sample(whole, self.limit, self.seed)
        domain = self._domain(folder, side, task=f"preparing {side.name}")
        pictures = _pictures(domain)
        seen = self.look(pictures, f"looking at {side.name}")
        return Real(side, split, domain.names, pictures, self._answers(side, other, domain), domain.skipped, seen)

    def _domain(self, folder: Folder, side: Side, *, task: str) -> Domain:
        reading = self.config.data.reading(side.letter)
        return open_domain(folder, self.config.data, test=True, **reading, progress=self.task(task))

    def _answers(self, side: Side, other: Side, domain: Domain) -> Answers:
        if side.test is None or side.truth is None:
            return Answers({}, {}, None)
        kept = Folder(side.truth, tuple(name for name in domain.names if (side.truth / name).is_file()))
        truths = {} if not kept.names else _by_name(self._domain(kept, other, task="preparing the truth"))
        masks: dict[str, Tensor] = {}
        if side.mask is not None:
            kept = Folder(side.mask, tuple(name for name in domain.names if (side.mask / name).is_file()))
            masks = _by_name(open_domain(kept, self.config.data, test=True)) if kept.names else {}
        numbers = {name: number for number, name in enumerate(domain.names)}
        some = [*truths.values()][:: -(-len(truths) // _LABEL_MAPS) or 1]
        return Answers(
            {numbers[name]: truth for name, truth in truths.items()},
            {numbers[name]: mask[:, :1] > 0 for name, mask in masks.items()},
            find_labels([truth[0] for truth in some]) if some else None,
        )

    def bounds(self, source: Real, target: Real) -> Bounds:
        """What real pictures and what doing nothing score as translations from `source` to `target`."""
        real, real_of = self._real(len(source.pictures), target)
        strangers = _strangers(source, target, self.seed)
        if strangers is not None:
            real["structure"] = strangers
        given = source.pictures.like(target.pictures)
        nothing: dict[str, Figure] = {}
        if given is not None:
            same = given.format.channels == source.pictures.format.channels
            seen = source.seen if same else self.look(given, f"looking at {source.side.name}")
            nothing = self._figures(source, target, given, seen, resample=False)
        return Bounds(real, {name: figure.value for name, figure in nothing.items()}, real_of)

    def _real(self, count: int, target: Real) -> tuple[dict[str, float], str]:
        """Real pictures of the target against others: as many as the translations, where there are."""
        name = target.side.name
        shares = class_shares(target.seen, self.classes, seed=self.seed)
        if target.split == "train" or not target.side.train.names:
            figures, real_of = halves(target.seen, self.seed), f"one half of the {name} against the other"
        else:
            domain = self._domain(
                sample(target.side.train, count, self.seed), target.side, task=f"preparing train {name}"
            )
            train = self.look(_pictures(domain), f"looking at train {name}")
            figures, real_of = distances(train, target.seen, seed=self.seed), f"{len(domain)} train {name}"
        return {key: figure.value for key, figure in (figures | shares).items()}, real_of

    def score(self, translator: Translator, source: Real, target: Real, bounds: Bounds) -> Iterator[dict[str, Any]]:
        """The entries of one translator in `scores`, but for what tells translators apart."""
        word, form = source.side.name, target.pictures.format

        def translate(images: Tensor) -> Tensor:
            out = translator.quickly(images, rounded=form.dtype == "uint8")  # as `translate` does
            return from_unit(out, form.dtype, form.range).permute(0, 2, 3, 1).contiguous()

        made = over(source.pictures, translate, self.task(f"translating {word}"))
        fakes = Pictures([one.numpy() for one in made], PixelFormat(made[0].shape[-1], form.dtype, form.range))
        seen = self.look(fakes, f"looking at translated {word}")
        for name, figure in self._figures(source, target, fakes, seen, resample=True).items():
            real, baseline = bounds.real.get(name, math.nan), bounds.baseline.get(name, math.nan)
            higher = real >= baseline if is_share(name) else not lower_is_better(name)
            whole = figure.of_sets or name == "structure"
            yield {
                "name": name,
                "value": finite(figure.value),
                "interval_95": None if figure.interval_95 is None else list(figure.interval_95),
                "real": finite(real),
                "baseline": finite(baseline),
                "images_real": len(target.pictures) if figure.of_sets else 0,
                "images_fake": len(fakes) if whole else len(source.answers.truths),
                "better": "higher" if higher else "lower",
                "split": source.split,
                "what": self._sentence(name, source, target, bounds),
            } | self._classes(name, source, fakes)

    def score_reconstruction(self, autoencoder: Translator, source: Real) -> Iterator[dict[str, Any]]:
        """The entries of what the encoder and the decoder of a translator make of its input."""
        word, form = source.side.name, source.pictures.format

        def reconstruct(images: Tensor) -> Tensor:
            out = autoencoder.quickly(images, rounded=form.dtype == "uint8")
            return from_unit(out, form.dtype, form.range).permute(0, 2, 3, 1).contiguous()

        made = over(source.pictures, reconstruct, self.task(f"reconstructing {word}"))
        backs = Pictures([one.numpy() for one in made], form)
        pairs = [(backs.floats(index), source.pictures.floats(index)) for index in range(len(backs))]
        found = {"psnr_reconstruction_db": _bounded(torch.tensor([psnr(*pair).item() for pair in pairs]).double())}
        if all(min(back.shape[-2:]) >= _SMALLEST_SIDE for back, _ in pairs):
            found["ssim_reconstruction"] = torch.tensor([ssim(*pair).item() for pair in pairs], dtype=torch.float64)
        for name, figure in means(found, seed=self.seed).items():
            yield {
                "name": name,
                "value": finite(figure.value),
                "interval_95": None if figure.interval_95 is None else list(figure.interval_95),
                "real": None,
                "baseline": None,
                "images_real": 0,
                "images_fake": len(backs),
                "better": "higher",
                "split": source.split,
                "what": f"{meaning(name, source=word, target=word, classes={})}{SPLITS[source.split]}.",
            }

    def _classes(self, name: str, source: Real, fakes: Pictures) -> dict[str, Any]:
        """Each label's own agreement, where the figure is a mean over labels."""
        labels = source.answers.labels
        if name != "label_iou" or labels is None:
            return {}
        whole = _confusions(source, fakes, labels).sum(dim=0)
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

    def _sentence(self, name: str, source: Real, target: Real, bounds: Bounds) -> str:
        a, b = source.side.name, target.side.name
        what = meaning(name, source=a, target=b, classes=self.classes)
        if name == "structure":
            what += f"; real against real: {b} that have nothing to do with the input"
        elif name in bounds.real:
            what += f"; real against real: {f'real {b}' if is_share(name) else bounds.real_of}"
        if math.isfinite(bounds.baseline.get(name, math.nan)):
            what += f"; doing nothing: {a} left as they are"
        return f"{what}{SPLITS[source.split]}."

    def _figures(self, source: Real, target: Real, fakes: Pictures, seen: Seen, *, resample: bool) -> dict[str, Figure]:
        """All figures of `fakes`, taken for translations of the source's pictures."""
        labels = source.answers.labels
        figures = means(_one_by_one(source, fakes), seed=self.seed)
        if labels is not None:
            figures |= label_figures(_confusions(source, fakes, labels), seed=self.seed)
        figures |= distances(seen, target.seen, seed=self.seed, resample=resample)
        return figures | class_shares(seen, self.classes, seed=self.seed)

    def look(self, pictures: Pictures, phase: str) -> Seen:
        """What all the networks make of pictures, and patches where these are of one size."""
        one_size = len({array.shape for array in pictures.arrays}) == 1

        def seen_by_all(images: Tensor) -> list[dict[str, Tensor]]:
            found = {name: rows for network in self.networks for name, rows in network.look(images).items()}
            found |= patches_of(images, among=len(pictures)) if one_size else {}
            return [{name: rows[index] for name, rows in found.items()} for index in range(len(images))]

        each = over(pictures, seen_by_all, self.task(phase))
        return {name: torch.stack([one[name] for one in each]) for name in each[0]}


def over(
    pictures: Pictures, function: Callable[[Tensor], Sequence[Any] | Tensor], progress: Callable[[int, int], None]
) -> list[Any]:
    """What `function` gives for each picture, called with batches `(B, C, H, W)` in [-1, 1] of equal size."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, array in enumerate(pictures.arrays):
        groups.setdefault(array.shape, []).append(index)
    results: dict[int, Any] = {}
    for group in groups.values():
        for start in range(0, len(group), _BATCH_SIZE):
            batch = group[start : start + _BATCH_SIZE]
            results.update(zip(batch, function(pictures.floats(*batch))))
            progress(len(results), len(pictures))
    return [results[index] for index in range(len(pictures))]


def _one_by_one(source: Real, fakes: Pictures) -> dict[str, Tensor]:
    """Figures that each picture has of its own, `(N,)` by name; NaN for a picture without."""
    found: dict[str, Tensor] = {}

    def keep(name: str, index: int, value: Tensor) -> None:
        found.setdefault(name, torch.full((len(fakes),), math.nan, dtype=torch.float64))[index] = value

    for index in range(len(fakes)):
        fake, given = fakes.floats(index), source.pictures.floats(index)
        truth = source.answers.truths.get(index)
        if truth is not None and truth.shape == fake.shape:
            same = given if given.shape == fake.shape else None
            for name, value in compare_to_truth(fake, truth, same, source.answers.masks.get(index)).items():
                keep(name, index, value[0])
        if min(fake.shape[-2:]) >= _SMALLEST_SIDE:
            keep("structure", index, structure(fake, given)[0])
    return {name: _bounded(values) if name.endswith("_db") else values for name, values in found.items()}


def _bounded(values: Tensor) -> Tensor:
    """PSNRs of which none is infinite, unless all are."""
    return values.clamp(max=_MOST_DB) if values.isfinite().any() else values


def _strangers(source: Real, target: Real, seed: int) -> float | None:
    """The structure that pictures of the source share with others of the target drawn at random."""
    order = torch.randperm(len(target.pictures), generator=torch.Generator().manual_seed(seed)).tolist()
    values = []
    for index in range(len(source.pictures)):
        given, other = source.pictures.floats(index), target.pictures.floats(order[index % len(order)])
        if min(given.shape[-2:]) >= _SMALLEST_SIDE:
            if other.shape[-2:] != given.shape[-2:]:
                other = functional.interpolate(other, size=given.shape[-2:], mode="bicubic", antialias=True)
            values.append(structure(other, given).item())
    return sum(values) / len(values) if values else None


def _confusions(source: Real, fakes: Pictures, labels: Tensor) -> Tensor:
    return torch.cat([confusion(fakes.floats(index), truth, labels) for index, truth in source.answers.truths.items()])


def judged(side: Side) -> tuple[Split, Folder]:
    """The pictures of a domain to judge on: its test split, else those held out for validation, else all of train."""
    if side.test is not None:
        return "test", side.test
    if side.validation is not None:
        return "validation", side.validation
    return "train", side.train


def sample(folder: Folder, count: int | None, seed: int) -> Folder:
    """`count` pictures drawn without replacement; equal names give an equal sample, so pairs stay pairs."""
    if count is None or count >= len(folder.names):
        return folder
    drawn = np.random.default_rng(seed).choice(len(folder.names), size=count, replace=False)
    return Folder(folder.directory, tuple(folder.names[index] for index in sorted(drawn)))


def halves(seen: Seen, seed: int) -> dict[str, Figure]:
    """Distances of one half of a set to the other; none for fewer than 4 pictures."""
    count = len(next(iter(seen.values()), ()))
    if count < 4:
        return {}
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    one, other = (rows(seen, half) for half in order.chunk(2))
    return distances(one, other, seed=seed)


def finite(value: float) -> float | None:
    """The value, or None where JSON has no word for it."""
    return value if math.isfinite(value) else None


def _pictures(domain: Domain) -> Pictures:
    return Pictures([domain.image(index) for index in range(len(domain))], domain.format)


def _by_name(domain: Domain) -> dict[str, Tensor]:
    """Each picture as `(1, C, H, W)` in [-1, 1]."""
    pictures = _pictures(domain)
    return {name: pictures.floats(number) for number, name in enumerate(domain.names)}
