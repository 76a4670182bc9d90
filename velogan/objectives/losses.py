"""Losses: adversarial ones on logits, L1, lost edges and the contrast of patches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

GanLossName = Literal["lsgan", "vanilla", "hinge"]

Logits = Tensor | Sequence[Tensor]
"""What a discriminator gives: logits of any shape, or those of several heads."""


def gan_loss(
    logits: Logits, *, real: bool, kind: GanLossName, smoothing: float = 0.0, weights: Tensor | None = None
) -> Tensor:
    """The discriminator's loss of `logits` that should all say real, or all fake; a scalar in float32.

    lsgan: squared distance to 1 / 0 (Mao et al. 2017, eq. 2). vanilla: binary cross entropy (Goodfellow et al.
    2014, eq. 1). hinge: Miyato et al. 2018, eq. 16. Losses of several heads are added (Sauer et al. 2021). With
    `smoothing`, the target of real images is 1 - `smoothing` for lsgan and vanilla (Salimans et al. 2016, section 3.4:
    one-sided label smoothing). `weights`, `(B,)`, say how much each image counts in the mean; without them, each
    counts 1.
    """
    if not isinstance(logits, Tensor):
        one = partial(gan_loss, real=real, kind=kind, smoothing=smoothing, weights=weights)
        return torch.stack([one(head) for head in logits]).sum()
    logits = logits.float()
    if kind == "hinge":
        return _mean(F.relu(1 - logits if real else 1 + logits), weights)
    target = torch.full_like(logits, (1 - smoothing) * real)
    loss = F.mse_loss if kind == "lsgan" else F.binary_cross_entropy_with_logits
    return loss(logits, target) if weights is None else _mean(loss(logits, target, reduction="none"), weights)


def _mean(each: Tensor, weights: Tensor | None) -> Tensor:
    """That over all, `(B, C, H, W)`, where the images have these weights, `(B,)`."""
    return each.mean() if weights is None else (each * weights.view(-1, 1, 1, 1)).mean()


def generator_adversarial_loss(logits: Logits, *, kind: GanLossName) -> Tensor:
    """The generator's loss of `logits` on its images, which should say real; a scalar in float32.

    hinge has a form of its own, the negative mean (Miyato et al. 2018, eq. 17).
    """
    if kind != "hinge":
        return gan_loss(logits, real=True, kind=kind)
    heads = [logits] if isinstance(logits, Tensor) else logits
    return torch.stack([-head.float().mean() for head in heads]).sum()


def l1_loss(made: Tensor, wanted: Tensor) -> Tensor:
    """The mean of |made - wanted| in float32: an L1 loss whose gradient keeps the layout of tensors in memory."""
    return (made.float() - wanted.float()).abs().sum() / made.numel()


EDGE, FAINT = 0.1, 0.02
"""Differences of neighbours in brightness, in [-1, 1], that count as half an edge: in what is given, and in a
translation of it."""


def edge_loss(made: Tensor, given: Tensor) -> Tensor:
    """How far edges of `given` are from being edges of `made`: near 0 where they are kept, 1 where they are lost.

    Of the gradients g of the brightness, normalised gradient fields n = g / (|g|^2 + EDGE^2)^(1/2) are compared, as for
    the registration of images of two kinds (Haber and Modersitzki 2006). Theirs is the mean of 1 - (n_given n_made)^2.
    Here it is 1 - |n_given n_made|, weighted by |n_given|^2: what appears where the given image is flat costs nothing.
    For `made`, FAINT stands in place of EDGE. So an edge stays where it was, but its dark side may become the bright
    one, as bone does between CT and MR, and it may become faint, as roofs do in a map. How bright or coloured an image
    is does not count. Equal images have some loss, since a faint edge counts in part only.

    `made` and `given` are `(B, C, H, W)` in [-1, 1], equal but for C, sides of at least 2. Returns the mean over the
    images, a scalar in float32. An image without edges counts 0.
    """
    mine, theirs = _gradient(made), _gradient(given)
    strength, other = theirs.square().sum(1), mine.square().sum(1)
    alike = (mine * theirs).sum(1).abs() / ((strength + EDGE**2) * (other + FAINT**2)).sqrt()
    weight = strength / (strength + EDGE**2)
    lost = weight * (1 - alike)
    return (lost.sum((1, 2)) / (weight.sum((1, 2)) + 1e-6)).mean()


def _gradient(images: Tensor) -> Tensor:
    """The differences of a pixel's brightness to that right of it and below, `(B, 2, H - 1, W - 1)`, in float32."""
    bright = _brightness(images)
    here = bright[:, :-1, :-1]
    return torch.stack([bright[:, :-1, 1:] - here, bright[:, 1:, :-1] - here], dim=1)


def _brightness(images: Tensor) -> Tensor:
    """`(B, H, W)` of `(B, C, H, W)`: Rec. 601 luma of three channels, else the channels' mean."""
    images = images.float()
    if images.shape[1] != 3:
        return images.mean(1)
    red, green, blue = images.unbind(1)
    return 0.299 * red + 0.587 * green + 0.114 * blue


TEMPERATURE = 0.07
"""Of the contrast of patches, as in the paper."""


def patch_nce_loss(made: Tensor, given: Tensor) -> Tensor:
    """How badly each patch of a translation tells its own patch of the input from the input's others.

    `made` and `given` are features `(B, n, C)` of length one; patch i of the one is to be patch i of the other. It is
    the mean of -log(exp(v v+ / T) / sum of exp(v v' / T) over all v' of the same image) (Park et al. 2020, eq. 2 and 3,
    as a mean over patches). `given` gets no gradient. A scalar in float32, about log n for features at random.
    """
    with torch.autocast("cpu" if made.is_meta else made.device.type, enabled=False):
        alike = made.float() @ given.detach().float().mT / TEMPERATURE
        return (alike.logsumexp(2) - alike.diagonal(dim1=1, dim2=2)).mean()


def sample_locations(uniform: Tensor, among: int) -> Tensor:
    """Different places for each image, `(B, n)`, at random among so many; `uniform` is `(count, B)` in [0, 1).

    n is `count`, or `among` where that is less. The places lie in n ranges of equal length, one in each: that needs no
    sorting, and covers the picture.
    """
    count = min(len(uniform), among)
    first = torch.arange(count + 1, device=uniform.device) * among // count
    lengths = first.diff()[:, None]
    within = (uniform[:count] * lengths).long().clamp(max=lengths - 1)
    return (first[:-1, None] + within).T


def gather_at(features: Tensor, where: Tensor) -> Tensor:
    """`(B, n, C)`: what `features`, `(B, C, H, W)`, have at the places `where`, `(B, n)`, counted row by row."""
    rows = features.permute(0, 2, 3, 1).flatten(1, 2)
    return rows.gather(1, where[:, :, None].expand(-1, -1, rows.shape[2]))
