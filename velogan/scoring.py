"""The figures of one translator, with their floors and ceilings, over prepared pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from velogan.data.cache import Domain, open_domain
from velogan.data.config import DataConfig
from velogan.data.sources import Folder, Side
from velogan.deploy.model import Translator
from velogan.metrics.figures import Seen, class_shares, compare_sets, compare_to_truth, meaning
from velogan.metrics.squeezenet import SqueezeNet

Progress = Callable[[int, int], None]
Task = Callable[[str], Progress]
"""Starts a phase by its name; what it returns is called with `(done, total)`."""

_BATCH_SIZE = 16
_LOWER = ("squeeze_fid", "squeeze_kid")


@dataclass(frozen=True)
class Answer:
    """The true translation of one picture, and the object's mask `(1, 1, H, W)` where there is one."""

    index: int
    truth: Tensor
    mask: Tensor | None


@dataclass(frozen=True)
class Real:
    """The pictures of one domain, each `(C, H, W)` uint8: its test split, or train where there is none.

    `seen` is what the network makes of them, where there is one; `skipped` counts unreadable files.
    """

    side: Side
    pictures: list[Tensor]
    answers: list[Answer]
    skipped: int
    seen: Seen | None

    def counts(self) -> dict[str, Any]:
        """What was compared, for the protocol."""
        sizes = sorted(list(picture.shape[-2:]) for picture in self.pictures)
        return {
            "name": self.side.name,
            "split": "test" if self.side.test else "train",
            "images": len(self.pictures),
            "skipped": self.skipped,
            "with_truth": len(self.answers),
            "smallest_and_largest_px": [sizes[0], sizes[-1]],
        }


@dataclass(frozen=True)
class Bounds:
    """One direction's figures by name, for real pictures (`floor_of` says which) and for doing nothing."""

    floors: dict[str, float]
    ceilings: dict[str, float]
    floor_of: str


@dataclass(frozen=True)
class Scorer:
    """How to score: preparation of the pictures, the network if there is one, classes to count, sample."""

    config: DataConfig
    net: SqueezeNet | None
    classes: Mapping[str, int]
    limit: int | None
    seed: int
    task: Task

    def open(self, side: Side) -> Real:
        """Prepare one domain's pictures, with truth and masks where they are kept, and look at them."""
        folder = _sample(side.test or side.train, self.limit, self.seed)
        domain = open_domain(folder, self.config, test=True, progress=self.task(f"preparing {side.name}"))
        pictures = _pictures(domain)
        seen = self._look(pictures, f"looking at {side.name}")
        return Real(side, pictures, self._answers(side, domain), len(domain.skipped), seen)

    def _answers(self, side: Side, domain: Domain) -> list[Answer]:
        if side.test is None or side.truth is None:
            return []
        truths, masks = (
            {} if directory is None else _by_name(open_domain(Folder(directory, domain.names), self.config, test=True))
            for directory in (side.truth, side.mask)
        )
        return [
            Answer(index, truths[name], masks[name][None, :1] > 127 if name in masks else None)
            for index, name in enumerate(domain.names)
            if name in truths
        ]

    def bounds(self, source: Real, target: Real) -> Bounds:
        """Floors and ceilings for translations from `source` to `target`."""
        floors, floor_of = self._floors(len(source.pictures), target)
        return Bounds(floors, self._figures(source, target, source.pictures, source.seen), floor_of)

    def _floors(self, count: int, target: Real) -> tuple[dict[str, float], str]:
        """Real pictures of the target against others: as many as the translations, where there are."""
        if target.seen is None:
            return {}, ""
        name, shares = target.side.name, class_shares(target.seen, self.classes)
        if target.side.test is None:
            order = torch.randperm(len(target.pictures), generator=torch.Generator().manual_seed(self.seed))
            one, other = (target.seen[half] for half in order.chunk(2))
            halves = f"one half of the {name} against the other"
            return compare_sets(one, other, seed=self.seed) | shares, halves
        domain = open_domain(_sample(target.side.train, count, self.seed), self.config, test=True)
        train = self._look(_pictures(domain), f"looking at train {name}")
        assert train is not None
        return compare_sets(train, target.seen, seed=self.seed) | shares, f"{len(domain)} train {name}"

    def score(self, translator: Translator, source: Real, target: Real, bounds: Bounds) -> Iterator[dict[str, Any]]:
        """The entries of one translator in `scores`, but for what tells translators apart."""
        word = source.side.name
        translated = _over(source.pictures, translator, self.task(f"translating {word}"))
        fakes = [_to_bytes(image) for image in translated]
        seen = self._look(fakes, f"looking at translated {word}")
        for name, value in self._figures(source, target, fakes, seen).items():
            floor, ceiling = bounds.floors.get(name, math.nan), bounds.ceilings[name]
            of_sets = name in bounds.floors
            higher = floor >= ceiling if name.startswith("share_") else name not in _LOWER
            yield {
                "name": name,
                "value": _finite(value),
                "floor": _finite(floor),
                "ceiling": _finite(ceiling),
                "images_real": len(target.pictures) if of_sets else 0,
                "images_fake": len(fakes) if of_sets else len(source.answers),
                "better": "higher" if higher else "lower",
                "what": self._sentence(name, source, target, bounds),
            }

    def _sentence(self, name: str, source: Real, target: Real, bounds: Bounds) -> str:
        a, b = source.side.name, target.side.name
        what = meaning(name, source=a, target=b, classes=self.classes)
        if name in bounds.floors:
            what += f"; floor: {f'real {b}' if name.startswith('share_') else bounds.floor_of}"
        if math.isfinite(bounds.ceilings[name]):
            what += f"; ceiling: {a} left as they are"
        return what + "."

    def _figures(self, source: Real, target: Real, fakes: Sequence[Tensor], seen: Seen | None) -> dict[str, float]:
        """All figures of `fakes`, taken for translations of the source's pictures."""
        found: dict[str, list[float]] = {}
        for answer in source.answers:
            given = _floats([source.pictures[answer.index]])
            fake, truth = _floats([fakes[answer.index]]), _floats([answer.truth])
            for name, value in compare_to_truth(fake, truth, given, answer.mask).items():
                found.setdefault(name, []).append(value.item())
        figures = {name: _mean(values) for name, values in found.items()}
        if seen is None or target.seen is None:
            return figures
        return figures | compare_sets(seen, target.seen, seed=self.seed) | class_shares(seen, self.classes)

    def _look(self, pictures: Sequence[Tensor], phase: str) -> Seen | None:
        net = self.net
        if net is None:
            return None
        pairs = _over(pictures, lambda images: zip(*net(images.to(net.mean.device))), self.task(phase))
        features, logits = zip(*pairs)
        return Seen(torch.stack(features).cpu(), torch.stack(logits).cpu())


def _over(pictures: Sequence[Tensor], function: Callable[[Tensor], Iterable[Any]], progress: Progress) -> list[Any]:
    """What `function` gives for each picture, called with batches `(B, C, H, W)` in [-1, 1] of equal size."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, picture in enumerate(pictures):
        groups.setdefault(tuple(picture.shape), []).append(index)
    results: dict[int, Any] = {}
    for group in groups.values():
        for start in range(0, len(group), _BATCH_SIZE):
            batch = group[start : start + _BATCH_SIZE]
            results.update(zip(batch, function(_floats([pictures[index] for index in batch]))))
            progress(len(results), len(pictures))
    return [results[index] for index in range(len(pictures))]


def _floats(pictures: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(pictures)) / 127.5 - 1


def _to_bytes(image: Tensor) -> Tensor:
    return ((image + 1) * 127.5).round().clamp(0, 255).byte()


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]  # an empty mask has no score
    return sum(known) / len(known) if known else math.nan


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _sample(folder: Folder, count: int | None, seed: int) -> Folder:
    """`count` pictures drawn without replacement; equal names give an equal sample, so pairs stay pairs."""
    if count is None or count >= len(folder.names):
        return folder
    drawn = np.random.default_rng(seed).choice(len(folder.names), size=count, replace=False)
    return Folder(folder.directory, tuple(folder.names[index] for index in sorted(drawn)))


def _pictures(domain: Domain) -> list[Tensor]:
    return [torch.from_numpy(domain.image(index)).permute(2, 0, 1) for index in range(len(domain))]


def _by_name(domain: Domain) -> dict[str, Tensor]:
    return dict(zip(domain.names, _pictures(domain)))
