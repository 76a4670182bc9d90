"""The pictures that are scored: prepared, with their true translations and masks where these are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from velogan.data.config import DataConfig
from velogan.data.pictures.values import PixelFormat, normalize, to_channels
from velogan.data.sets.cache import Domain, open_domain
from velogan.data.sets.pair import Task
from velogan.data.sets.sources import Folder, ImageSource, Side, in_folder
from velogan.metrics.figures import Seen
from velogan.metrics.labels import find_labels

_BATCH_SIZE = 16
_LABEL_MAPS = 64
"""At most so many true translations are searched for the colours of labels."""

Some = TypeVar("Some", bound=ImageSource)
Split = Literal["test", "validation", "train"]


@dataclass(frozen=True)
class Pictures:
    """Pictures `(H, W, C)` at their own depth, and what their values stand for."""

    arrays: Sequence[np.ndarray]
    format: PixelFormat

    @classmethod
    def of(cls, domain: Domain) -> Pictures:
        """All pictures of a domain, in memory."""
        return cls([domain.image(index) for index in range(len(domain))], domain.format)

    def __len__(self) -> int:
        return len(self.arrays)

    def floats(self, *indices: int) -> Tensor:
        """Some pictures of equal size as `(B, C, H, W)` in [-1, 1]."""
        pixels = torch.from_numpy(np.stack([self.arrays[index] for index in indices]))
        return normalize(pixels, self.format.range).permute(0, 3, 1, 2)

    def shown(self) -> Pictures:
        """As people see them: of slices with neighbours the middle ones."""
        beside = self.format.neighbours
        if not beside:
            return self
        form = replace(self.format, channels=1, neighbours=0)
        return Pictures([array[..., beside : beside + 1] for array in self.arrays], form)

    def like(self, other: Pictures) -> Pictures | None:
        """The same pictures with as many channels as `other`; None if they cannot be converted."""
        channels = other.format.channels
        try:
            arrays = [to_channels(array, channels) for array in self.arrays]
        except ValueError:
            return None
        return Pictures(arrays, replace(self.format, channels=channels))

    def map(
        self, function: Callable[[Tensor], Sequence[Any] | Tensor], progress: Callable[[int, int], None]
    ) -> list[Any]:
        """Call `function` with batches `(B, C, H, W)` in [-1, 1] of equal size; give its result for each picture."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for index, array in enumerate(self.arrays):
            groups.setdefault(array.shape, []).append(index)
        results: dict[int, Any] = {}
        for group in groups.values():
            for start in range(0, len(group), _BATCH_SIZE):
                batch = group[start : start + _BATCH_SIZE]
                results.update(zip(batch, function(self.floats(*batch))))
                progress(len(results), len(self))
        return [results[index] for index in range(len(self))]


@dataclass(frozen=True)
class Answers:
    """True translations and masks of the object, `(1, 1, H, W)`, both by the picture's number; either may be missing.

    `labels`: the colours of the true translations, `(K, C)` in [-1, 1], if these are label maps.
    """

    truths: Mapping[int, Tensor]
    masks: Mapping[int, Tensor]
    labels: Tensor | None


@dataclass(frozen=True)
class Real:
    """The real pictures of one domain, of the `split` that `judged` chooses.

    `seen` is what the networks see in them; `skipped` names unreadable files, with the reason.
    """

    side: Side
    split: Split
    names: Sequence[str]
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


def open_side(
    folder: ImageSource, side: Side, data: DataConfig, *, progress: Callable[[int, int], None] | None = None
) -> Domain:
    """Open pictures of the domain `side`, prepared as for a test."""
    return open_domain(folder, data, test=True, **data.reading(side.letter), progress=progress)


def open_answers(side: Side, other: Side, names: Sequence[str], data: DataConfig, *, task: Task) -> Answers:
    """Open the true translations and the masks of the pictures `names` of `side`; none without a test split.

    `other` is the domain that true translations belong to.
    """
    if side.test is None or side.truth is None:
        return Answers({}, {}, None)
    truths: dict[str, Tensor] = {}
    masks: dict[str, Tensor] = {}
    labels = None
    kept = in_folder(side.truth, tuple(name for name in names if (side.truth / name).is_file()), data)
    if kept.names:
        progress = task("preparing the truth")
        truths = _by_name(open_side(replace(kept, filled=False), other, data, progress=progress))
        labels = find_labels([truth[0] for truth in [*truths.values()][:: -(-len(truths) // _LABEL_MAPS)]])
        if labels is None:  # they are photographs, whose pixels without data are filled as in training
            truths = _by_name(open_side(kept, other, data, progress=progress))
    if side.mask is not None:
        kept = Folder(side.mask, tuple(name for name in names if (side.mask / name).is_file()), filled=False)
        masks = _by_name(open_domain(kept, data, test=True)) if kept.names else {}
    numbers = {name: number for number, name in enumerate(names)}
    return Answers(
        {numbers[name]: truth for name, truth in truths.items()},
        {numbers[name]: mask[:, :1] > 0 for name, mask in masks.items()},
        labels,
    )


def judged(side: Side) -> tuple[Split, ImageSource]:
    """The pictures of a domain to judge on: its test split, else those held out for validation, else all of train."""
    if side.test is not None:
        return "test", side.test
    if side.validation is not None:
        return "validation", side.validation
    return "train", side.train


def sample(folder: Some, count: int | None, seed: int) -> Some:
    """`count` pictures drawn without replacement; equal names give an equal sample, so pairs stay pairs."""
    if count is None or count >= len(folder.names):
        return folder
    drawn = np.random.default_rng(seed).choice(len(folder.names), size=count, replace=False)
    return folder.some(sorted(drawn.tolist()))


def _by_name(domain: Domain) -> dict[str, Tensor]:
    """Each picture as `(1, C, H, W)` in [-1, 1]."""
    pictures = Pictures.of(domain)
    return {name: pictures.floats(number) for number, name in enumerate(domain.names)}
