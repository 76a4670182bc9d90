"""Label maps: pictures of a few flat colours, each of which stands for a class."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

_MOST_CLASSES = 40
_FLAT = 12.0  # levels of 255 that a pixel and its eight neighbours lie within, in a flat area saved as JPEG
_TIGHT = 8.0  # levels by which flat areas of one class differ
_PIXELS = 2000  # the most that are examined in each picture
_SHARE = 0.8
APART = 32.0
"""Colours nearer than this, in levels of 255, are one class."""
_RARE = 1e-3
_CLIPPED = 0.94  # of 1, where black and white begin
_FLAT_SHARE = 0.55  # cityscapes' and facades' label maps in grey: 0.64 and more; slices of CT and MR: up to 0.51


def find_labels(truths: Sequence[Tensor]) -> Tensor | None:
    """The colours of label maps, `(K, C)` in [-1, 1], most frequent first; None if these are no label maps.

    In label maps, nearly all pixels of flat areas lie close to one of a few colours. This must also hold without the
    most frequent colour, since a flat background alone makes no label map. Flat areas of photographs have many colours
    in between. Edges do not count, since JPEG and resizing change them. Of grey scans only black and white are flat.
    `truths`: `(C, H, W)` in [-1, 1].
    """
    if truths[0].shape[0] == 1 and _flat_between(truths) < _FLAT_SHARE:
        return None
    levels = torch.cat([_flat_pixels(truth * 127.5) for truth in truths])
    rest, found, close = levels, [], []
    while len(rest) and len(found) < _MOST_CLASSES:
        centre = _densest(rest)
        distance = (rest - centre).abs().amax(dim=1)
        near = int((distance <= _TIGHT).sum())
        if near < max(_RARE * len(levels), 1):
            break
        found.append(centre / 127.5)
        close.append(near)
        rest = rest[distance > APART]
    if len(found) < 2:
        return None
    flat = sum(close) >= _SHARE * len(levels) and sum(close[1:]) >= _SHARE * (len(levels) - close[0])
    return torch.stack(found) if flat else None


def _flat_pixels(levels: Tensor) -> Tensor:
    """Some pixels `(N, C)` of one picture `(C, H, W)` that are like their neighbours."""
    pixels = levels.flatten(1).T[_is_flat(levels).flatten()]
    return pixels[:: max(len(pixels) // _PIXELS, 1)]


def _is_flat(levels: Tensor) -> Tensor:
    """Where a pixel of `(C, H, W)` is like its neighbours: `(H, W)`."""
    highest, lowest = (functional.max_pool2d(sign * levels[None], 3, 1, 1)[0] * sign for sign in (1, -1))
    return (highest - lowest).amax(dim=0) <= _FLAT


def _flat_between(truths: Sequence[Tensor]) -> float:
    """The share of flat pixels of those that are neither black nor white; 1 where there are none."""
    flat, between = 0, 0
    for truth in truths:
        inside = truth[0].abs() < _CLIPPED
        flat, between = flat + int((_is_flat(truth * 127.5) & inside).sum()), between + int(inside.sum())
    return flat / between if between else 1.0


def _densest(levels: Tensor) -> Tensor:
    """The middle of the pixels `(N, C)` around the most frequent colour."""
    colours, counts = (levels / _TIGHT).round().unique(dim=0, return_counts=True)
    around = (levels - colours[counts.argmax()] * _TIGHT).abs().amax(dim=1) <= _TIGHT
    return levels[around].median(dim=0).values


def assign(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest label of every pixel `(B, H, W)`, and the distance to it in levels of 255, the largest of channels.

    `images`: `(B, C, H, W)` and `labels`: `(K, C)`, both in [-1, 1].
    """
    pixels = images.movedim(1, -1).flatten(0, -2)
    nearest = torch.cdist(pixels, labels).argmin(dim=1)
    distance = (pixels - labels[nearest]).abs().amax(dim=1) * 127.5
    shape = (images.shape[0], *images.shape[2:])
    return nearest.view(shape), distance.view(shape)


def confusion(fakes: Tensor, truths: Tensor, labels: Tensor) -> Tensor:
    """How many pixels of each true class (rows) are taken for each class (columns): `(B, K, K)` float64.

    Pixels of the truth between the colours, as along edges, have no class and do not count.
    `fakes`, `truths`: `(B, C, H, W)`; `labels`: `(K, C)`, all in [-1, 1].
    """
    true, distance = assign(truths, labels)
    taken, _ = assign(fakes, labels)
    count = len(labels)
    pairs = true * count + taken
    counts = [
        torch.bincount(pair[near], minlength=count**2).view(count, count)
        for pair, near in zip(pairs, distance <= APART)
    ]
    return torch.stack(counts).double()


def accuracy(confusions: Tensor) -> Tensor:
    """Share of pixels whose class is right, 0 to 1, of `(..., K, K)`; NaN if no pixel has a class."""
    return confusions.diagonal(dim1=-2, dim2=-1).sum(dim=-1) / confusions.sum(dim=(-2, -1))


def intersection_over_union(confusions: Tensor) -> Tensor:
    """Each class's pixels in both over those in either, 0 to 1, `(..., K)`; NaN for a class in neither.

    The Jaccard index, as in Everingham et al. 2010, section 5.3.
    """
    both = confusions.diagonal(dim1=-2, dim2=-1)
    return both / (confusions.sum(dim=-1) + confusions.sum(dim=-2) - both)


def mean_iou(confusions: Tensor) -> Tensor:
    """Mean of `intersection_over_union` over the classes that the truth holds, of `(..., K, K)`."""
    present = confusions.sum(dim=-1) > 0
    return torch.where(present, intersection_over_union(confusions), math.nan).nanmean(dim=-1)
