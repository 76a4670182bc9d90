"""A generator in stages, so that a loss sees features on the way; and the heads by which it compares them.

As "Contrastive Learning for Unpaired Image-to-Image Translation" (Park et al. 2020) has it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from velogan.networks.generators import split
from velogan.networks.layers import Stage, initialise

HEAD = 256
"""Features of a patch behind a head (a two-layer MLP of 256 units)."""


class Tapped(nn.Module):
    """The first part of a generator: `(B, C, H, W)` to what each of its consecutive stages gives, the last one last."""

    def __init__(self, stages: Sequence[nn.Module]):
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        seen: list[Tensor] = []
        for stage in self.stages:
            x = stage(x)
            seen.append(x)
        return tuple(seen)

    @property
    def widths(self) -> list[int]:
        """Channels of what each stage gives."""
        return [[x for x in stage.modules() if isinstance(x, nn.Conv2d)][-1].out_channels for stage in self.stages]

    def map_parts(self, other: Callable[[nn.Module], nn.Module]) -> Tapped:
        """The same stages, over the same weights, each replaced by `other(stage)`."""
        return Tapped([other(stage) for stage in self.stages])


def tapped(net: nn.Module) -> tuple[Tapped, Stage]:
    """A resnet `Generator` in two parts over its weights: up to its middle block, with taps, and what follows.

    Taps are, as in the paper, the convolutions that halve the sides, the first block and, of nine, the
    fifth; of fewer blocks, the one in the middle.
    """
    encoder, blocks, decoder = (list(stage.model.named_children()) for stage in split(net))
    layers, first = [*encoder, *blocks, *decoder], len(encoder)
    _, *halving = (place for place, (_, layer) in enumerate(encoder, start=1) if isinstance(layer, nn.Conv2d))
    places = [*halving, *sorted({first + min(1, len(blocks)), first + min(len(blocks) // 2 + 1, len(blocks))})]
    stages = [OrderedDict(layers[begin:end]) for begin, end in zip([0, *places], [*places, None])]
    *before, behind = [Stage(nn.Sequential(part)) for part in stages]
    return Tapped(before), behind


class PatchHeads(nn.Module):
    """A small head for each tap: features of patches `(B, n, widths[i])` to such of length one, `(B, n, HEAD)`."""

    def __init__(self, widths: Sequence[int]):
        super().__init__()
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(width, HEAD), nn.ReLU(), nn.Linear(HEAD, HEAD)) for width in widths
        )
        initialise(self)

    def forward(self, patches: Sequence[Tensor]) -> list[Tensor]:
        return [_of_length_one(head(part)) for head, part in zip(self.heads, patches, strict=True)]

    def map_parts(self, other: Callable[[nn.Module], nn.Module]) -> PatchHeads:
        """Itself: it is no network of images."""
        return self


def _of_length_one(x: Tensor) -> Tensor:
    """Each vector of `x`, `(..., C)`, divided by its length, in float32; one of nearly no length stays short."""
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-8)
