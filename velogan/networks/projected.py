"""A discriminator that sees what a trained network sees ("Projected GANs Converge Faster", Sauer et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from velogan.networks.layers import initialise, spectrally_normalise
from velogan.networks.pretrained import frozen_features, in_three
from velogan.types import ForwardKind, forward_kind_of


class ProjectedDiscriminator(nn.Module):
    """`(B, C, H, W)` in [-1, 1] to the logits of its heads, `(B, 1, h, w)` each, from the finest scale on.

    Each head looks at one map of frozen `features`; EfficientNet-Lite has four, at strides of 4, 8, 16
    and 32. Before that, fixed random convolutions mix channels, and scales from the coarsest to the finest, all to
    `width` channels (their cross-channel and cross-scale mixing). With `patch`, a discriminator of pixels, its
    logits come last. Where a picture's shorter side has less than `size` pixels, the features see it enlarged to so
    many, at most to twice its size: a network knows things best at about the size that it was trained with. `patch`
    sees it as it is.

    The features are no part of the weights: all discriminators of a process share them (`pretrained.frozen_features`).
    The weights hold their fingerprint, and are refused where the features are others. They see C channels as
    `pretrained.in_three` makes three of them; `patch` sees all.
    """

    def __init__(self, features: str, *, width: int, size: int | None = None, patch: nn.Module | None = None):
        super().__init__()
        self.features, self.size = features, size
        self._see: nn.Module | None = None  # found at each call
        self._mix: tuple[nn.Module] = (Mix(self._buffers),)  # no child: its weights are registered here
        widths = frozen_features(features, torch.device("meta")).widths
        for number, channels in enumerate(widths):
            self.register_buffer(f"across_{number}", _random(width, channels))
            if number:
                self.register_buffer(f"down_{number}", _random(width, width))
        self.heads = nn.ModuleList(_head(width) for _ in widths)
        self.patch = patch

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        logits = [head(_at_least_two(mixed)) for head, mixed in zip(self.heads, self.mixed(x))]
        return (*logits, self.patch(x)) if self.patch is not None else tuple(logits)

    def mixed(self, x: Tensor) -> list[Tensor]:
        """What the heads see: features `(B, width, h, w)`, the finest first."""
        see = frozen_features(self.features, x.device).maps if self._see is None else self._see
        return self._mix[0](see(_enlarged(in_three(x), self.size)))

    def get_extra_state(self) -> Tensor:
        """The fingerprint of the features, as bytes."""
        mine = frozen_features(self.features, torch.device("cpu")).fingerprint
        return torch.tensor(list(bytes.fromhex(mine)), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """RuntimeError where the weights were trained with other features."""
        if not torch.equal(state.cpu(), self.get_extra_state()):
            raise RuntimeError(
                f"discriminator.features={self.features} has other weights here than where this was trained: install "
                "the same ones"
            )

    def map_parts(self, other: Callable[[nn.Module], nn.Module]) -> ProjectedDiscriminator:
        """The same discriminator, over the same weights, with `other` of features, mixing, each head, and `patch`."""
        made = ProjectedDiscriminator.__new__(ProjectedDiscriminator)
        nn.Module.__init__(made)
        made.features, made.size, made._buffers = self.features, self.size, self._buffers
        made.heads = nn.ModuleList(other(head) for head in self.heads)
        made.patch = None if self.patch is None else other(self.patch)
        made._mix = (other(self._mix[0]),)
        see = frozen_features(self.features, self.get_buffer("across_0").device).maps
        made._see = see if forward_kind_of(see) is None else other(see)  # somebody's own network is called as it is
        return made


class Mix(nn.Module):
    """Fixed random convolutions between channels, and scales from the coarsest to the finest.

    From maps `(B, C_i, h_i, w_i)`, the finest first, to as many `(B, width, h_i, w_i)`. `weights` are the buffers of
    the discriminator by name.
    """

    forward_kind: ClassVar[ForwardKind] = "mix"

    def __init__(self, weights: Mapping[str, Tensor | None]):
        super().__init__()
        self.weights = weights

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        mixed = [F.conv2d(part, self.weight("across", number)) for number, part in enumerate(maps)]
        for finer, coarser in reversed(list(pairwise(range(len(mixed))))):
            above = F.conv2d(mixed[coarser], self.weight("down", coarser))
            size = (mixed[finer].shape[2], mixed[finer].shape[3])
            mixed[finer] = mixed[finer] + F.interpolate(above, size=size, mode="nearest")
        return mixed

    def weight(self, way: Literal["across", "down"], number: int) -> Tensor:
        """That of the convolution to map `number`, or from it to the finer one."""
        found = self.weights[f"{way}_{number}"]
        assert found is not None
        return found


def _enlarged(x: Tensor, size: int | None) -> Tensor:
    """`x`, `(B, C, H, W)`, enlarged until its shorter side has `size` pixels, at most to twice its size, in float32.

    What `F.interpolate` computes, bilinear. By products with matrices, whose gradients are the same each time on a GPU
    too; `interpolate`'s are not.
    """
    height, width = x.shape[2:]
    if size is None or min(height, width) >= size:
        return x
    scale = min(size / min(height, width), 2)
    with torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False):
        rows = _stretch(height, round(scale * height), x.device)
        columns = _stretch(width, round(scale * width), x.device)
        return rows.T @ x.float() @ columns


def _stretch(old: int, new: int, device: torch.device) -> Tensor:
    """`(old, new)`: a row of `old` pixels times it is the row of `new` pixels by linear interpolation."""
    return F.interpolate(torch.eye(old, device=device)[None], size=new, mode="linear")[0]


def _random(outputs: int, inputs: int) -> Tensor:
    """A 1x1 convolution that keeps the variance of its input (He et al. 2015, without the factor for ReLU)."""
    return torch.randn(outputs, inputs, 1, 1) / inputs**0.5


def _at_least_two(x: Tensor) -> Tensor:
    """`x` with zeros behind a side of one pixel, where the padding of a convolution would be anyway.

    On a CPU, torch 2.13's bfloat16 convolutions with stride 2 compute wrong gradients for a side of one pixel.
    """
    height, width = x.shape[2:]
    return x if min(height, width) > 1 else F.pad(x, (0, int(width == 1), 0, int(height == 1)))


def _head(width: int) -> nn.Sequential:
    """Halves the side, rounded up, and gives a logit for each place; spectrally normalised (Miyato et al. 2018)."""
    head = nn.Sequential(nn.Conv2d(width, width, 3, stride=2, padding=1), nn.LeakyReLU(0.2))
    head.append(nn.Conv2d(width, 1, 3, padding=1))
    initialise(head)
    spectrally_normalise(head)
    return head
