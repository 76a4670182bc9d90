"""A discriminator over the features of a pretrained network ("Projected GANs Converge Faster", Sauer et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from velogan.networks.layers import initialise, spectrally_normalise
from velogan.networks.pretrained import frozen_features, to_three_channels
from velogan.types import ForwardKind, forward_kind_of, without_autocast


class ProjectedDiscriminator(nn.Module):
    """Maps images `(B, C, H, W)` in [-1, 1] to the logits of its heads, `(B, 1, h, w)` each, finest scale first.

    Each head takes one map of frozen `features`; EfficientNet-Lite has four, at strides of 4, 8, 16 and 32. Before the
    heads, fixed random convolutions mix each map's channels into `width` channels, then add coarser maps to finer ones
    (the paper's cross-channel and cross-scale mixing).
    `size`: images whose shorter side has fewer pixels are enlarged to it for the features, at most to twice their size,
    since a network recognises objects best at about the size that it was trained with.
    `patch`: a PatchGAN, which gets the images with all C channels; its logits come last.

    The feature network is not part of the weights: all discriminators share it. The weights contain its
    fingerprint, and are rejected if it differs. Its input has three channels, see `pretrained.to_three_channels`.
    """

    def __init__(self, features: str, *, width: int, size: int | None = None, patch: nn.Module | None = None):
        super().__init__()
        self.features, self.size = features, size
        self._extract: nn.Module | None = None  # None: looked up at each call
        self._mix: tuple[nn.Module] = (Mix(self._buffers),)  # in a tuple: not a child
        widths = frozen_features(features, torch.device("meta")).widths
        for number, channels in enumerate(widths):
            self.register_buffer(f"across_{number}", _random_weight(width, channels))
            if number:
                self.register_buffer(f"down_{number}", _random_weight(width, width))
        self.heads = nn.ModuleList(_build_head(width) for _ in widths)
        self.patch = patch

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        logits = [head(_pad_to_two_pixels(mixed)) for head, mixed in zip(self.heads, self.mix_features(x))]
        return (*logits, self.patch(x)) if self.patch is not None else tuple(logits)

    def mix_features(self, x: Tensor) -> list[Tensor]:
        """Return the inputs of the heads: mixed features `(B, width, h, w)`, finest first."""
        extract = frozen_features(self.features, x.device).maps if self._extract is None else self._extract
        return self._mix[0](extract(_enlarge(to_three_channels(x), self.size)))

    def get_extra_state(self) -> Tensor:
        """Return the fingerprint of the features, as bytes."""
        fingerprint = frozen_features(self.features, torch.device("cpu")).fingerprint
        return torch.tensor(list(bytes.fromhex(fingerprint)), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Raise RuntimeError if the weights were trained with other features."""
        if not torch.equal(state.cpu(), self.get_extra_state()):
            raise RuntimeError(
                f"discriminator.features={self.features} has other weights here than in training: install the same ones"
            )

    def map_parts(self, function: Callable[[nn.Module], nn.Module]) -> ProjectedDiscriminator:
        """Return a discriminator with the same weights, with `function(part)` in place of each head and other part."""
        mapped = ProjectedDiscriminator.__new__(ProjectedDiscriminator)
        nn.Module.__init__(mapped)
        mapped.features, mapped.size = self.features, self.size
        mapped._buffers = self._buffers
        mapped.heads = nn.ModuleList(function(head) for head in self.heads)
        mapped.patch = None if self.patch is None else function(self.patch)
        mapped._mix = (function(self._mix[0]),)
        extract = frozen_features(self.features, self.get_buffer("across_0").device).maps
        mapped._extract = extract if forward_kind_of(extract) is None else function(extract)
        return mapped


class Mix(nn.Module):
    """Cross-channel, then cross-scale mixing (coarse to fine) by fixed random 1x1 convolutions.

    It maps features `(B, C_i, h_i, w_i)`, finest first, to the same number of maps `(B, width, h_i, w_i)`.
    `weights`: the buffers of the discriminator by name.
    """

    forward_kind: ClassVar[ForwardKind] = "mix"

    def __init__(self, weights: Mapping[str, Tensor | None]):
        super().__init__()
        self.weights = weights

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        mixed = [F.conv2d(features, self.weight("across", number)) for number, features in enumerate(maps)]
        for finer, coarser in reversed(list(pairwise(range(len(mixed))))):
            from_coarser = F.conv2d(mixed[coarser], self.weight("down", coarser))
            size = (mixed[finer].shape[2], mixed[finer].shape[3])
            mixed[finer] = mixed[finer] + F.interpolate(from_coarser, size=size, mode="nearest")
        return mixed

    def weight(self, kind: Literal["across", "down"], number: int) -> Tensor:
        """Return the 1x1 kernel "across" the channels of map `number`, or from it "down" to the next finer map."""
        weight = self.weights[f"{kind}_{number}"]
        assert weight is not None
        return weight


def _enlarge(x: Tensor, size: int | None) -> Tensor:
    """Enlarge `x`, `(B, C, H, W)`, until its shorter side has `size` pixels, at most to twice its size, in float32.

    Equals bilinear `F.interpolate`, but by matrix products, whose gradients are deterministic on a GPU.
    """
    height, width = x.shape[2:]
    if size is None or min(height, width) >= size:
        return x
    scale = min(size / min(height, width), 2)
    with without_autocast(x):
        rows = _interpolation_matrix(height, round(scale * height), x.device)
        columns = _interpolation_matrix(width, round(scale * width), x.device)
        return rows.T @ x.float() @ columns


def _interpolation_matrix(old: int, new: int, device: torch.device) -> Tensor:
    """Return the matrix `(old, new)` that maps a row of `old` pixels to `new` pixels by linear interpolation."""
    return F.interpolate(torch.eye(old, device=device)[None], size=new, mode="linear")[0]


def _random_weight(c_out: int, c_in: int) -> Tensor:
    """Draw a 1x1 kernel that preserves the variance of its input (He et al. 2015, without the factor for ReLU)."""
    return torch.randn(c_out, c_in, 1, 1) / c_in**0.5


def _pad_to_two_pixels(x: Tensor) -> Tensor:
    """Pad sides of one pixel of `x`, `(B, C, h, w)`, to two with zeros, as the following convolution's padding would.

    On a CPU, torch 2.13's bfloat16 convolutions with stride 2 compute wrong gradients for a side of one pixel.
    """
    height, width = x.shape[2:]
    return x if min(height, width) > 1 else F.pad(x, (0, int(width == 1), 0, int(height == 1)))


def _build_head(width: int) -> nn.Sequential:
    """Build a head with spectral norm, which halves the sides, rounded up, and returns a logit per position."""
    head = nn.Sequential(nn.Conv2d(width, width, 3, stride=2, padding=1), nn.LeakyReLU(0.2))
    head.append(nn.Conv2d(width, 1, 3, padding=1))
    initialise(head)
    spectrally_normalise(head)
    return head
