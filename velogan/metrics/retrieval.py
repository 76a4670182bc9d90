"""Retrieval: how well translations identify their own inputs among other images, by coarse edges, not colours."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from velogan.metrics.pixel import luminance

CHANCE = 0.5
"""Expected retrieval of images that do not depend on the inputs."""

SIDE = 32
"""Side in cells of the grid of edges that are compared, so coarse that noise and fine texture average out."""

EDGE = 0.05
"""Difference between neighbouring cells, for images in [-1, 1], at which an edge has half the maximum strength."""


def edge_descriptors(images: Tensor) -> Tensor:
    """Describe images `(B, C, H, W)` in [-1, 1], of any size, by the edges of their luminance, `(B, 3 SIDE²)`.

    Angles are doubled ("Optimal Orientation Detection of Linear Symmetry", Bigün and Granlund 1987), so that inverted
    contrast gives the same edges; strengths saturate. Vectors have length 1, or 0 without edges.
    """
    size = (SIDE + 1, SIDE + 1)
    small = functional.interpolate(luminance(images.float()), size=size, mode="bilinear", antialias=True)[:, 0]
    corner = small[:, :-1, :-1]
    x, y = small[:, :-1, 1:] - corner, small[:, 1:, :-1] - corner
    strength = x.square() + y.square()
    edges = torch.stack([x.square() - y.square(), 2 * x * y, strength], 1) / (strength + EDGE**2)[:, None]
    return functional.normalize(edges.flatten(1), dim=1)


def retrieval(fake: Tensor, inputs: Tensor) -> Tensor:
    """Return for each translation the share of the other inputs that are less similar to it than its own: `(N,)`.

    1 if a translation identifies its input; on average `CHANCE` if translations do not depend on inputs; NaN for a
    single image. Equally similar inputs count half. `fake`, `inputs`: descriptors `(N, D)` in the same order.
    """
    similarity = fake @ inputs.T
    own = similarity.diagonal()[:, None]
    less, equal = (similarity < own).sum(1), (similarity == own).sum(1) - 1
    return (less + equal / 2).double() / (len(own) - 1)
