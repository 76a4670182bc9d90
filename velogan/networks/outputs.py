"""Output modes of a generator other than `image`: `change`, `mask` and `keep`.

Each changes parts of the input and leaves the other parts unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from velogan.types import ForwardKind, without_autocast

FULL_REPLACE_AT = 0.3
"""Mean absolute change over channels, of values in [-1, 1], from which `apply_change` keeps no detail of the input."""

FILTER_RADIUS = 6
"""Radius in pixels of the square windows of `guided_filter`."""

FILTER_EPSILON = 0.01
"""Regularisation of `guided_filter`: edges of the guide, in [-1, 1], with less variance than this are ignored."""

DETAIL_REACH = 8
"""Reach in pixels of `suppress_fine_detail`: 2 for the detail, then 2 and 4 for its local mean amplitude."""


def apply_change(x: Tensor, *, after: Tensor, before: Tensor) -> Tensor:
    """Apply the change from `before` to `after` to the images `x`, all `(B, C, H, W)` in about [-1, 1].

    `before` is the decoder's reconstruction of `x`. The detail that it lacks, `x - before`, is kept where nothing
    changes and fades out where much changes: the stripes of an apple must not stay on the orange that replaces it.
    """
    fade = (after - before).abs().mean(1, keepdim=True).div(FULL_REPLACE_AT).clamp(max=1)
    return after + (1 - fade) * (x - before)


class ChangeGenerator(nn.Module):
    """Adds to an image the difference that a translator makes to its encoding `z = encoder(x)`; see `apply_change`.

    `after` is `decoder(translator(z))`, `before` is `decoder(z)`. The stages have the shapes of a resnet generator's
    `Stages`. The output is clamped to [-1, 1].
    """

    multiple = 4
    forward_kind: ClassVar[ForwardKind] = "change"

    def __init__(self, encoder: nn.Module, translator: nn.Module, decoder: nn.Module):
        super().__init__()
        self.encoder, self.translator = encoder, translator
        self.decoder = decoder

    def forward(self, x: Tensor) -> Tensor:
        encoded = self.encoder(x)
        after, before = self.decoder(torch.cat([self.translator(encoded), encoded])).float().chunk(2)
        return apply_change(x, after=after, before=before).clamp(-1, 1)

    def map_parts(self, function: Callable[[nn.Module], nn.Module]) -> ChangeGenerator:
        """Return the generator with each stage replaced by `function(stage)`."""
        return ChangeGenerator(function(self.encoder), function(self.translator), function(self.decoder))


class MaskGenerator(nn.Module):
    """Replaces a part of an image: `m g + (1 - m) x`; `net` outputs the image g and, as its last channel, the mask.

    The mask m in [0, 1] is (1 + that channel) / 2 ("Unsupervised Attention-guided Image-to-Image Translation",
    Mejjati et al. 2018, here by the generator itself), aligned with edges of the input; see `guided_filter`. In eval
    mode the input's fine detail is kept as well; see `suppress_fine_detail`.
    """

    forward_kind: ClassVar[ForwardKind] = "mask"
    extra_radius: ClassVar[int] = 2 * FILTER_RADIUS + DETAIL_REACH
    """Pixels added to the receptive radius of `net`: two means of `guided_filter`, and `suppress_fine_detail`."""

    def __init__(self, net: nn.Module, *, multiple: int | None = None):
        super().__init__()
        self.net = net
        self.multiple: int = multiple or net.multiple  # pyright: ignore[reportAttributeAccessIssue]

    def forward(self, x: Tensor) -> Tensor:
        outputs = apply_mask(self.net(x), x)
        return outputs if self.training else suppress_fine_detail(outputs, x)

    def map_parts(self, function: Callable[[nn.Module], nn.Module]) -> Self:
        """Return the generator, in the same mode, with its network replaced by `function(network)`."""
        mapped = type(self)(function(self.net), multiple=self.multiple)
        mapped.training = self.training
        return mapped


def apply_mask(outputs: Tensor, x: Tensor) -> Tensor:
    """Blend the image in `outputs`, `(B, C + 1, H, W)`, into `x`, `(B, C, H, W)` in [-1, 1], by its last channel.

    That channel, the mask, is filtered with the mean over the channels of `x` as guide, which gets no gradient.
    """
    image, mask = outputs.float().split([x.shape[1], 1], dim=1)
    mask = guided_filter((mask + 1) / 2, x.detach().float().mean(1, keepdim=True)).clamp(0, 1)
    return x + mask * (image - x)


def guided_filter(mask: Tensor, guide: Tensor) -> Tensor:
    """Align the mask with edges of the guide, both `(B, 1, H, W)`, by a locally linear function of the guide.

    This is the guided filter ("Guided Image Filtering", He et al. 2010, equations 5, 6 and 8). The features of a
    generator are a quarter as wide and high as the image, so its mask alone ends some pixels beside an edge and leaves
    a visible rim. The filter is part of the network in training as well ("Fast End-to-End Trainable Guided Filter", Wu
    et al. 2018).
    """
    rows, columns = _box_mean_matrix(guide.shape[2], guide.device), _box_mean_matrix(guide.shape[3], guide.device).T
    with without_autocast(mask):
        means = rows @ torch.cat([guide, mask, guide * mask, guide * guide], 1) @ columns
        mean_guide, mean_mask, mean_product, mean_square = means.split(1, 1)
        slope = (mean_product - mean_guide * mean_mask) / (mean_square - mean_guide * mean_guide + FILTER_EPSILON)
        offset = mean_mask - slope * mean_guide
        slope, offset = (rows @ torch.cat([slope, offset], 1) @ columns).split(1, 1)
    return slope * guide + offset


def _box_mean_matrix(side: int, device: torch.device) -> Tensor:
    """Return the matrix `(side, side)` that averages a column of pixels over windows of radius `FILTER_RADIUS`."""
    position = torch.arange(side, device=device)
    in_window = ((position[:, None] - position).abs() <= FILTER_RADIUS).float()
    return in_window / in_window.sum(1, keepdim=True)


FULL_DETAIL_AT = 0.15
"""Local mean amplitude, of values in [-1, 1], from which fine detail of a change is applied in full."""

SPLINE = (1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16)
"""The B3 spline, the smoothing filter of the a trous algorithm."""


def suppress_fine_detail(outputs: Tensor, x: Tensor) -> Tensor:
    """Blend `outputs` into `x`, both `(B, C, H, W)` in [-1, 1]: coarse differences in full, fine ones only if strong.

    The a trous algorithm (Starck and Murtagh 1994, section 2) splits the difference into detail of about 2 to 4 pixels,
    its finest scale, and the rest, which is applied in full. Detail is multiplied by `min(d / FULL_DETAIL_AT, 1)`,
    where d is its local mean amplitude, as in wavelet shrinkage by neighbours (Cai and Silverman 2001). So the input's
    detail that a small generator cannot reproduce is kept (pores, twigs, lettering), and what the generator paints
    (stripes) is applied.
    """
    change = outputs.float() - x
    smooth = _smooth(change, 1)
    detail = change - smooth
    amplitude = _smooth(_smooth(detail.abs().mean(1, keepdim=True), 1), 2)
    return x + smooth + detail * amplitude.div(FULL_DETAIL_AT).clamp(max=1)


def _smooth(x: Tensor, step: int) -> Tensor:
    """Filter `x`, `(B, C, H, W)`, by the B3 spline with dilation `step` and replication padding."""
    channels, reach = x.shape[1], 2 * step
    taps = torch.tensor(SPLINE, dtype=x.dtype, device=x.device).expand(channels, 1, 1, 5)
    x = F.conv2d(F.pad(x, (reach, reach, 0, 0), mode="replicate"), taps, groups=channels, dilation=step)
    taps = taps.transpose(2, 3)
    return F.conv2d(F.pad(x, (0, 0, reach, reach), mode="replicate"), taps, groups=channels, dilation=step)


class KeepGenerator(MaskGenerator):
    """An ordinary generator that in eval mode suppresses small changes and fine detail of changes.

    See `suppress_small_changes` and `suppress_fine_detail`. In training they are not applied: the gradient would vanish
    where an image hardly changes, so that it might never change there.
    """

    forward_kind: ClassVar[ForwardKind] = "mask"
    extra_radius: ClassVar[int] = DETAIL_REACH

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.net(x)
        return outputs if self.training else suppress_fine_detail(suppress_small_changes(outputs, x), x)


FULL_CHANGE_AT = 0.2
"""Mean absolute change over channels, of values in [-1, 1], from which `suppress_small_changes` applies it in full."""


def suppress_small_changes(outputs: Tensor, x: Tensor) -> Tensor:
    """Blend `outputs` into `x`, both `(B, C, H, W)` in [-1, 1], where they differ strongly.

    A pixel's difference is multiplied by `min(d / FULL_CHANGE_AT, 1)`, where d is the mean of its absolute values over
    channels. So a network need not reproduce a background exactly, only approximately, to leave it unchanged. This
    is a smooth shrinkage of the change, like soft thresholding of wavelets (Donoho and Johnstone 1994).
    """
    change = outputs.float() - x
    return x + change * change.abs().mean(1, keepdim=True).div(FULL_CHANGE_AT).clamp(max=1)
