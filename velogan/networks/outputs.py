"""What becomes of a generator's picture where `generator.output` is not `image`: change, mask and keep.

Each adds to the input what shall change, and leaves the rest of it as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from velogan.types import ForwardKind

REPLACED = 0.3
"""A pixel that changes by this much, as a mean over channels in [-1, 1], keeps no detail of the input."""

NEAR = 6
"""Around each pixel `guided` fits a line to those at most so far away, across and along."""

FAINT = 0.01
"""Where the guide's variance is below this, of values in [-1, 1], its differences hardly count in `guided`."""

BEHIND = 8
"""How many pixels away `detailed` looks: 2 for the detail, 2 and 4 for how large it is around."""


def changed(x: Tensor, *, after: Tensor, before: Tensor) -> Tensor:
    """The images `x` with the change from `before` to `after`, all `(B, C, H, W)` in about [-1, 1].

    `before` is `x` as a decoder reconstructs it. The detail that it lacks, `x - before`, is kept where nothing changes
    and fades out where much changes: the stripes of an apple must not stay on the orange that replaces it.
    """
    fade = (after - before).abs().mean(1, keepdim=True).div(REPLACED).clamp(max=1)
    return after + (1 - fade) * (x - before)


class ChangeGenerator(nn.Module):
    """Changes an image as a translator changes its encoding `z = encoder(x)`; see `changed`.

    `after` is `decoder(translator(z))`, `before` is `decoder(z)`. The stages have the shapes of a resnet generator's
    `Stages`. The result is clamped to [-1, 1].
    """

    multiple = 4
    forward_kind: ClassVar[ForwardKind] = "change"

    def __init__(self, encoder: nn.Module, translator: nn.Module, decoder: nn.Module):
        super().__init__()
        self.encoder, self.translator, self.decoder = encoder, translator, decoder

    def forward(self, x: Tensor) -> Tensor:
        encoded = self.encoder(x)
        after, before = self.decoder(torch.cat([self.translator(encoded), encoded])).float().chunk(2)
        return changed(x, after=after, before=before).clamp(-1, 1)

    def map_parts(self, other: Callable[[nn.Module], nn.Module]) -> ChangeGenerator:
        """The same generator with each stage replaced by `other(stage)`."""
        return ChangeGenerator(other(self.encoder), other(self.translator), other(self.decoder))


class MaskGenerator(nn.Module):
    """Replaces a part of an image: `m g + (1 - m) x`, where `net` gives the picture g and the mask, its last channel.

    The mask m in [0, 1] is half of one plus that channel ("Unsupervised Attention-guided Image-to-Image Translation",
    Mejjati et al. 2018, here by the generator itself), and ends where the input has edges; see `guided`. In eval mode
    fine detail stays, too; see `detailed`.
    """

    forward_kind: ClassVar[ForwardKind] = "mask"
    around: ClassVar[int] = 2 * NEAR + BEHIND
    """How many pixels further than `net` a value of the result sees: both means of `guided`, then `detailed`."""

    def __init__(self, net: nn.Module, *, multiple: int | None = None):
        super().__init__()
        self.net = net
        self.multiple: int = multiple or net.multiple  # pyright: ignore[reportAttributeAccessIssue]

    def forward(self, x: Tensor) -> Tensor:
        made = masked(self.net(x), x)
        return made if self.training else detailed(made, x)

    def map_parts(self, other: Callable[[nn.Module], nn.Module]) -> Self:
        """The same generator, in the same mode, with its network replaced by `other(network)`."""
        made = type(self)(other(self.net), multiple=self.multiple)
        made.training = self.training
        return made


def masked(made: Tensor, x: Tensor) -> Tensor:
    """`x`, `(B, C, H, W)` in [-1, 1], with `made`, `(B, C + 1, H, W)`, where its last channel, the mask, is high.

    The mask is guided by the mean over the channels of `x`, which gets no gradient by that.
    """
    picture, mask = made.float().split([x.shape[1], 1], dim=1)
    mask = guided((mask + 1) / 2, x.detach().float().mean(1, keepdim=True)).clamp(0, 1)
    return x + mask * (picture - x)


def guided(mask: Tensor, guide: Tensor) -> Tensor:
    """The mask, `(B, 1, H, W)`, as a function of the guide, `(B, 1, H, W)`, that is linear around each pixel.

    The guided filter ("Guided Image Filtering", He et al. 2010, equations 5, 6 and 8). The features of a
    generator are a quarter as wide and high as the picture. So its mask alone ends some pixels beside an edge, and what
    it changes has a rim. The filter is a layer in training, too ("Fast End-to-End Trainable Guided Filter", Wu et al.
    2018).
    """
    rows, columns = _means(guide.shape[2], guide.device), _means(guide.shape[3], guide.device).T
    with torch.autocast("cpu" if mask.is_meta else mask.device.type, enabled=False):
        means = rows @ torch.cat([guide, mask, guide * mask, guide * guide], 1) @ columns
        mean_guide, mean_mask, both, square = means.split(1, 1)
        slope = (both - mean_guide * mean_mask) / (square - mean_guide * mean_guide + FAINT)
        offset = mean_mask - slope * mean_guide
        slope, offset = (rows @ torch.cat([slope, offset], 1) @ columns).split(1, 1)
    return slope * guide + offset


def _means(side: int, device: torch.device) -> Tensor:
    """`(side, side)`: times a column of pixels it is the column of the means of those within `NEAR`."""
    place = torch.arange(side, device=device)
    near = ((place[:, None] - place).abs() <= NEAR).float()
    return near / near.sum(1, keepdim=True)


DETAIL = 0.15
"""Fine detail that changes by this much around a pixel, as a mean over channels in [-1, 1], is taken over in full."""

SPLINE = (1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16)
"""The B3 spline, the smoothing filter of the a trous algorithm."""


def detailed(made: Tensor, x: Tensor) -> Tensor:
    """`x` with its differences to `made`, both `(B, C, H, W)` in [-1, 1], the finest ones in so far as they are large.

    The a trous algorithm (Starck and Murtagh 1994, section 2) splits the difference into detail of about 2 to 4 pixels,
    its finest scale, and the rest, which is taken over in full. Of the detail a pixel takes over the share
    `min(d / DETAIL, 1)`, where d is how large it is around, as shrinkage of wavelets by their neighbours does (Cai and
    Silverman 2001). So what a small generator cannot repeat stays (pores, twigs, lettering), and what it paints
    (stripes) comes through.
    """
    change = made.float() - x
    smooth = _smooth(change, 1)
    detail = change - smooth
    around = _smooth(_smooth(detail.abs().mean(1, keepdim=True), 1), 2)
    return x + smooth + detail * around.div(DETAIL).clamp(max=1)


def _smooth(x: Tensor, step: int) -> Tensor:
    """`x`, `(B, C, H, W)`, through the B3 spline with holes: its taps are `step` pixels apart. Edges are repeated."""
    channels, reach = x.shape[1], 2 * step
    taps = torch.tensor(SPLINE, dtype=x.dtype, device=x.device).expand(channels, 1, 1, 5)
    x = F.conv2d(F.pad(x, (reach, reach, 0, 0), mode="replicate"), taps, groups=channels, dilation=step)
    taps = taps.transpose(2, 3)
    return F.conv2d(F.pad(x, (0, 0, reach, reach), mode="replicate"), taps, groups=channels, dilation=step)


class KeepGenerator(MaskGenerator):
    """Gives a picture as an ordinary generator does; in eval mode keeps what that hardly changes, see `kept`, and fine
    detail, see `detailed`.

    Not while it trains: where the picture stays as it is, the gradient would vanish, and what should change might
    never.
    """

    forward_kind: ClassVar[ForwardKind] = "mask"
    around: ClassVar[int] = BEHIND

    def forward(self, x: Tensor) -> Tensor:
        made = self.net(x)
        return made if self.training else detailed(kept(made, x), x)


TAKEN = 0.2
"""A pixel that changes by this much, as a mean over channels in [-1, 1], takes over all of its change in `kept`."""


def kept(made: Tensor, x: Tensor) -> Tensor:
    """`x` with its differences to `made`, both `(B, C, H, W)` in [-1, 1], in so far as they are large.

    A pixel that differs by d, as a mean over channels, takes over the share `min(d / TAKEN, 1)` of the difference.
    Without it a network must repeat a background exactly to leave it alone; with it, nearly. It is a smooth shrinkage
    of the change, as soft thresholds are of wavelets (Donoho and Johnstone 1994).
    """
    change = made.float() - x
    return x + change * change.abs().mean(1, keepdim=True).div(TAKEN).clamp(max=1)
