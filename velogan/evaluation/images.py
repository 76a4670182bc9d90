"""The images that are scored: preprocessed as in training, with true translations and object masks if known."""

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
from velogan.data.sets.sources import DomainSource, Folder, ImageSource, folder_of_pictures
from velogan.metrics.labels import find_label_colours
from velogan.metrics.registry import Features

_BATCH_SIZE = 16
_MAX_LABEL_MAPS = 64
"""Maximum number of true translations that are searched for label colours."""

SourceT = TypeVar("SourceT", bound=ImageSource)
Split = Literal["test", "validation", "train"]


@dataclass(frozen=True)
class ImageSet:
    """Images `(H, W, C)` in their own dtype, and the pixel format that defines their value range."""

    arrays: Sequence[np.ndarray]
    format: PixelFormat

    @classmethod
    def from_domain(cls, domain: Domain) -> ImageSet:
        """Load all images of a domain into memory."""
        return cls([domain.image(index) for index in range(len(domain))], domain.format)

    def __len__(self) -> int:
        return len(self.arrays)

    def to_batch(self, *indices: int) -> Tensor:
        """Return the images at `indices`, which have equal sizes, as one batch `(B, C, H, W)` in [-1, 1]."""
        pixels = torch.from_numpy(np.stack([self.arrays[index] for index in indices]))
        return normalize(pixels, self.format.range).permute(0, 3, 1, 2)

    def without_context(self) -> ImageSet:
        """Return the images without context slices: only the centre slice of each."""
        context = self.format.neighbours
        if not context:
            return self
        pixel_format = replace(self.format, channels=1, neighbours=0)
        return ImageSet([array[..., context : context + 1] for array in self.arrays], pixel_format)

    def with_channels_of(self, other: ImageSet) -> ImageSet | None:
        """Return the images converted to the number of channels of `other`; None if there is no such conversion."""
        channels = other.format.channels
        try:
            arrays = [to_channels(array, channels) for array in self.arrays]
        except ValueError:
            return None
        return ImageSet(arrays, replace(self.format, channels=channels))

    def map(
        self, function: Callable[[Tensor], Sequence[Any] | Tensor], progress: Callable[[int, int], None]
    ) -> list[Any]:
        """Call `function` on batches `(B, C, H, W)` in [-1, 1] of equally sized images; return one result per image."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for index, array in enumerate(self.arrays):
            groups.setdefault(array.shape, []).append(index)
        results: dict[int, Any] = {}
        for group in groups.values():
            for start in range(0, len(group), _BATCH_SIZE):
                batch = group[start : start + _BATCH_SIZE]
                results.update(zip(batch, function(self.to_batch(*batch))))
                progress(len(results), len(self))
        return [results[index] for index in range(len(self))]


@dataclass(frozen=True)
class GroundTruth:
    """True translations `(1, C, H, W)` and object masks `(1, 1, H, W)`, by the image's index; either may be missing.

    `labels`: the label colours `(K, C)` in [-1, 1] if the true translations are label maps, else None.
    """

    truths: Mapping[int, Tensor]
    masks: Mapping[int, Tensor]
    labels: Tensor | None


@dataclass(frozen=True)
class DomainImages:
    """The real images of one domain, from the `split` that `scoring_split` chooses.

    `features`: outputs of the feature networks for `images`; `skipped`: name and reason of each unreadable file.
    """

    domain: DomainSource
    split: Split
    names: Sequence[str]
    images: ImageSet
    ground_truth: GroundTruth
    skipped: tuple[tuple[str, str], ...]
    features: Features

    def describe(self) -> dict[str, Any]:
        """Return the number, sizes and pixel format of the images, for the protocol."""
        sizes = sorted(list(array.shape[:2]) for array in self.images.arrays)
        pixel_format = self.images.format
        return {
            "name": self.domain.name,
            "split": self.split,
            "images": len(self.images),
            "unreadable": [{"name": name, "reason": reason} for name, reason in self.skipped],
            "with_truth": len(self.ground_truth.truths),
            "smallest_and_largest_px": [sizes[0], sizes[-1]],
            "channels": pixel_format.channels,
            "dtype": pixel_format.dtype,
            "range": pixel_format.range,
        }


def open_for_evaluation(
    source: ImageSource, domain: DomainSource, data: DataConfig, *, progress: Callable[[int, int], None] | None = None
) -> Domain:
    """Open the images `source` of `domain`, preprocessed without random augmentation."""
    return open_domain(source, data, test=True, **data.read_options(domain.letter), progress=progress)


def open_ground_truth(
    domain: DomainSource, other: DomainSource, names: Sequence[str], data: DataConfig, *, task: Task
) -> GroundTruth:
    """Open the true translations and object masks of test images `names`; empty if `domain` has no true translations.

    `other`: the domain that the true translations belong to.
    """
    if domain.test is None or domain.truth is None:
        return GroundTruth({}, {}, None)
    truths: dict[str, Tensor] = {}
    masks: dict[str, Tensor] = {}
    labels = None
    source = folder_of_pictures(domain.truth, tuple(name for name in names if (domain.truth / name).is_file()), data)
    if source.names:
        progress = task("preparing the truth")
        truths = _load_by_name(open_for_evaluation(replace(source, filled=False), other, data, progress=progress))
        labels = find_label_colours([truth[0] for truth in [*truths.values()][:: -(-len(truths) // _MAX_LABEL_MAPS)]])
        if labels is None:  # photographs: pixels without data are filled as in training
            truths = _load_by_name(open_for_evaluation(source, other, data, progress=progress))
    if domain.mask is not None:
        mask_folder = Folder(domain.mask, tuple(name for name in names if (domain.mask / name).is_file()), filled=False)
        masks = _load_by_name(open_domain(mask_folder, data, test=True)) if mask_folder.names else {}
    index_of = {name: index for index, name in enumerate(names)}
    return GroundTruth(
        {index_of[name]: truth for name, truth in truths.items()},
        {index_of[name]: mask[:, :1] > 0 for name, mask in masks.items()},
        labels,
    )


def scoring_split(domain: DomainSource) -> tuple[Split, ImageSource]:
    """Return the split to score on and its images: test, else validation (held-out training images), else train."""
    if domain.test is not None:
        return "test", domain.test
    if domain.validation is not None:
        return "validation", domain.validation
    return "train", domain.train


def random_subset(source: SourceT, count: int | None, seed: int) -> SourceT:
    """Draw `count` images without replacement; None: all. Sources of equal length draw equal indices, to keep pairs."""
    if count is None or count >= len(source.names):
        return source
    indices = np.random.default_rng(seed).choice(len(source.names), size=count, replace=False)
    return source.select(sorted(indices.tolist()))


def _load_by_name(domain: Domain) -> dict[str, Tensor]:
    """Return the images of the domain by name, each `(1, C, H, W)` in [-1, 1]."""
    images = ImageSet.from_domain(domain)
    return {name: images.to_batch(index) for index, name in enumerate(domain.names)}
