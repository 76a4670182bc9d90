"""Label maps: images of a few flat colours, each of which stands for a class."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

_MAX_CLASSES = 40
_FLAT_RANGE = 12.0  # maximum range of a pixel and its eight neighbours in a flat area saved as JPEG, in 8-bit levels
_COLOUR_TOLERANCE = 8.0  # maximum difference between flat areas of one class, in 8-bit levels
_MAX_PIXELS = 2000  # maximum number of pixels examined per image
_MIN_LABEL_SHARE = 0.8  # minimum share of flat pixels that lie close to a label colour
MIN_COLOUR_DISTANCE = 32.0
"""Colours closer than this, in 8-bit levels, belong to one class."""
_MIN_CLASS_SHARE = 1e-3
_CLIPPED = 0.94  # absolute values in [-1, 1] above this are black or white
_MIN_FLAT_SHARE = 0.55  # cityscapes' and facades' label maps in grey: 0.64 and more; slices of CT and MR: up to 0.51


def find_label_colours(truths: Sequence[Tensor]) -> Tensor | None:
    """Return the colours of label maps, `(K, C)` in [-1, 1], most frequent first; None if these are no label maps.

    In label maps, nearly all pixels of flat areas lie close to one of a few colours. This must also hold without the
    most frequent colour, since a photograph may have a flat background. Flat areas of photographs have many colours
    in between. Edges do not count, since JPEG and resizing change them. Grey scans are flat only in black and white.
    `truths`: `(C, H, W)` in [-1, 1].
    """
    if truths[0].shape[0] == 1 and _flat_share_of_grey(truths) < _MIN_FLAT_SHARE:
        return None
    levels = torch.cat([_flat_pixels(truth * 127.5) for truth in truths])
    remaining = levels
    colours: list[Tensor] = []
    counts: list[int] = []  # pixels close to each colour
    while len(remaining) and len(colours) < _MAX_CLASSES:
        colour = _most_frequent_colour(remaining)
        distance = (remaining - colour).abs().amax(dim=1)
        count = int((distance <= _COLOUR_TOLERANCE).sum())
        if count < max(_MIN_CLASS_SHARE * len(levels), 1):
            break
        colours.append(colour / 127.5)
        counts.append(count)
        remaining = remaining[distance > MIN_COLOUR_DISTANCE]
    if len(colours) < 2:
        return None
    is_label_map = sum(counts) >= _MIN_LABEL_SHARE * len(levels)
    is_label_map &= sum(counts[1:]) >= _MIN_LABEL_SHARE * (len(levels) - counts[0])
    return torch.stack(colours) if is_label_map else None


def _flat_pixels(levels: Tensor) -> Tensor:
    """Return up to about `_MAX_PIXELS` pixels `(N, C)` of an image `(C, H, W)` that resemble their neighbours."""
    pixels = levels.flatten(1).T[_flat_mask(levels).flatten()]
    return pixels[:: max(len(pixels) // _MAX_PIXELS, 1)]


def _flat_mask(levels: Tensor) -> Tensor:
    """Return a mask `(H, W)` that is true at the pixels of `(C, H, W)` that resemble their neighbours."""
    highest, lowest = (functional.max_pool2d(sign * levels[None], 3, 1, 1)[0] * sign for sign in (1, -1))
    return (highest - lowest).amax(dim=0) <= _FLAT_RANGE


def _flat_share_of_grey(truths: Sequence[Tensor]) -> float:
    """Return the share of flat pixels among those neither black nor white; 1 if all are black or white."""
    flat, total = 0, 0
    for truth in truths:
        is_grey = truth[0].abs() < _CLIPPED
        flat += int((_flat_mask(truth * 127.5) & is_grey).sum())
        total += int(is_grey.sum())
    return flat / total if total else 1.0


def _most_frequent_colour(levels: Tensor) -> Tensor:
    """Return the median `(C,)` of the pixels `(N, C)` around the most frequent colour."""
    colours, counts = (levels / _COLOUR_TOLERANCE).round().unique(dim=0, return_counts=True)
    centre = colours[counts.argmax()] * _COLOUR_TOLERANCE
    is_near = (levels - centre).abs().amax(dim=1) <= _COLOUR_TOLERANCE
    return levels[is_near].median(dim=0).values


def nearest_labels(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the index of each pixel's nearest label, and the largest difference from it over channels: `(B, H, W)`.

    `images`: `(B, C, H, W)`, `labels`: `(K, C)`, in [-1, 1]. The difference is in 8-bit levels.
    """
    pixels = images.movedim(1, -1).flatten(0, -2)
    nearest = torch.cdist(pixels, labels).argmin(dim=1)
    distance = (pixels - labels[nearest]).abs().amax(dim=1) * 127.5
    shape = (images.shape[0], *images.shape[2:])
    return nearest.view(shape), distance.view(shape)


def confusion(fakes: Tensor, truths: Tensor, labels: Tensor) -> Tensor:
    """Return confusion matrices `(B, K, K)` float64: pixels by true class (rows) and predicted class (columns).

    True pixels that match no label colour, such as along edges, have no class and do not count.
    `fakes`, `truths`: `(B, C, H, W)`; `labels`: `(K, C)`, all in [-1, 1].
    """
    true, distance = nearest_labels(truths, labels)
    predicted, _ = nearest_labels(fakes, labels)
    count = len(labels)
    pairs = true * count + predicted
    matrices = [
        torch.bincount(pair[has_class], minlength=count**2).view(count, count)
        for pair, has_class in zip(pairs, distance <= MIN_COLOUR_DISTANCE)
    ]
    return torch.stack(matrices).double()


def accuracy(confusions: Tensor) -> Tensor:
    """Return the share (0 to 1) of pixels with the correct class, from `(..., K, K)`; NaN if no pixel has a class."""
    return confusions.diagonal(dim1=-2, dim2=-1).sum(dim=-1) / confusions.sum(dim=(-2, -1))


def intersection_over_union(confusions: Tensor) -> Tensor:
    """Return each class's IoU (0 to 1), `(..., K)`, from `(..., K, K)`; NaN for a class that does not occur.

    The Jaccard index: pixels of the class in both images over those in either (Everingham et al. 2010, section 5.3).
    """
    both = confusions.diagonal(dim1=-2, dim2=-1)
    return both / (confusions.sum(dim=-1) + confusions.sum(dim=-2) - both)


def mean_iou(confusions: Tensor) -> Tensor:
    """Return the mean of `intersection_over_union` over the classes that occur in the truth, from `(..., K, K)`."""
    present = confusions.sum(dim=-1) > 0
    return torch.where(present, intersection_over_union(confusions), math.nan).nanmean(dim=-1)
