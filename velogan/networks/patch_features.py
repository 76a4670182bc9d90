"""Intermediate features of a generator for a contrastive loss, and the heads that project them.

See "Contrastive Learning for Unpaired Image-to-Image Translation" (Park et al. 2020).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from velogan.networks.generators import split_stages
from velogan.networks.layers import Stage, initialise

HEAD_FEATURES = 256
"""Number of hidden units and of output features of a head, a two-layer MLP."""


class FeatureEncoder(nn.Module):
    """The first part of a generator, from images `(B, C, H, W)` to the outputs of its consecutive stages, in order."""

    def __init__(self, stages: Sequence[nn.Module]):
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        features: list[Tensor] = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        return tuple(features)

    @property
    def widths(self) -> list[int]:
        """Channels of the output of each stage."""
        return [[x for x in stage.modules() if isinstance(x, nn.Conv2d)][-1].out_channels for stage in self.stages]

    def map_parts(self, function: Callable[[nn.Module], nn.Module]) -> FeatureEncoder:
        """Return an encoder with the same weights, in which `function(stage)` replaces each stage."""
        return FeatureEncoder([function(stage) for stage in self.stages])


def split_for_features(net: nn.Module) -> tuple[FeatureEncoder, Stage]:
    """Split a resnet `Generator` into a feature encoder up to its middle block, and the rest, which share its weights.

    As in the paper, the features are the outputs of the strided convolutions, the first block, and the middle block
    (the fifth of nine).
    """
    encoder, blocks, decoder = (list(stage.model.named_children()) for stage in split_stages(net))
    layers, first_block = [*encoder, *blocks, *decoder], len(encoder)
    _, *strided = (end for end, (_, layer) in enumerate(encoder, start=1) if isinstance(layer, nn.Conv2d))
    block_ends = {first_block + min(1, len(blocks)), first_block + min(len(blocks) // 2 + 1, len(blocks))}
    stage_ends = [*strided, *sorted(block_ends)]
    stages = [OrderedDict(layers[start:end]) for start, end in zip([0, *stage_ends], [*stage_ends, None])]
    *feature_stages, rest = [Stage(nn.Sequential(stage)) for stage in stages]
    return FeatureEncoder(feature_stages), rest


class PatchHeads(nn.Module):
    """A small MLP per feature map, from patches `(B, n, widths[i])` to unit vectors `(B, n, HEAD_FEATURES)`."""

    def __init__(self, widths: Sequence[int]):
        super().__init__()
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(width, HEAD_FEATURES), nn.ReLU(), nn.Linear(HEAD_FEATURES, HEAD_FEATURES))
            for width in widths
        )
        initialise(self)

    def forward(self, patches: Sequence[Tensor]) -> list[Tensor]:
        return [_normalise(head(features)) for head, features in zip(self.heads, patches, strict=True)]

    def map_parts(self, function: Callable[[nn.Module], nn.Module]) -> PatchHeads:
        """Return self: the heads operate on patches, so there is nothing to accelerate."""
        return self


def _normalise(x: Tensor) -> Tensor:
    """Divide each vector of `x`, `(..., C)`, by its length, in float32; vectors of nearly zero length stay short."""
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-8)
