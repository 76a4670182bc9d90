"""Losses: adversarial, L1, PatchNCE and edges."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from velogan.types import without_autocast

GanLossName = Literal["lsgan", "vanilla", "hinge"]

Logits = Tensor | Sequence[Tensor]
"""Output of a discriminator: logits of any shape, or a sequence of such tensors, one for each head."""


def gan_loss(
    logits: Logits, *, is_real: bool, kind: GanLossName, smoothing: float = 0.0, weights: Tensor | None = None
) -> Tensor:
    """Return the discriminator's loss for `logits` of real images, or of fakes; a scalar in float32.

    lsgan: squared distance to 1 or 0 (Mao et al. 2017, eq. 2). vanilla: binary cross entropy (Goodfellow et al.
    2014, eq. 1). hinge: Miyato et al. 2018, eq. 16. Losses of several heads are added (Sauer et al. 2021).
    `smoothing`: for lsgan and vanilla the target of real images is 1 - `smoothing` (one-sided label smoothing,
    Salimans et al. 2016, section 3.4). `weights`: `(B,)`, factors of the images' losses. Default: 1.
    """
    if not isinstance(logits, Tensor):
        loss_of = partial(gan_loss, is_real=is_real, kind=kind, smoothing=smoothing, weights=weights)
        return torch.stack([loss_of(head) for head in logits]).sum()
    logits = logits.float()
    if kind == "hinge":
        return _weighted_mean(F.relu(1 - logits if is_real else 1 + logits), weights)
    target = torch.full_like(logits, (1 - smoothing) * is_real)
    loss = F.mse_loss if kind == "lsgan" else F.binary_cross_entropy_with_logits
    return loss(logits, target) if weights is None else _weighted_mean(loss(logits, target, reduction="none"), weights)


def _weighted_mean(losses: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean of `losses`, `(B, C, H, W)`, after multiplying each image's losses by its weight, `(B,)`."""
    return losses.mean() if weights is None else (losses * weights.view(-1, 1, 1, 1)).mean()


def generator_adversarial_loss(logits: Logits, *, kind: GanLossName) -> Tensor:
    """Return the generator's loss for the discriminator's `logits` of fakes; a scalar in float32.

    It is `gan_loss` with `is_real=True`; for hinge, the negative mean of the logits (Miyato et al. 2018, eq. 17).
    """
    if kind != "hinge":
        return gan_loss(logits, is_real=True, kind=kind)
    heads = [logits] if isinstance(logits, Tensor) else logits
    return torch.stack([-head.float().mean() for head in heads]).sum()


def l1_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of |outputs - targets|, in float32; the gradient keeps the memory layout of `outputs`."""
    return (outputs.float() - targets.float()).abs().sum() / outputs.numel()


SOURCE_EDGE, FAKE_EDGE = 0.1, 0.02
"""Lengths |g| of brightness gradients, of values in [-1, 1], at which |n|^2 in `edge_loss` is 1/2."""


def edge_loss(fake: Tensor, source: Tensor) -> Tensor:
    """Return the fraction of edges of `source` that `fake` lacks: near 0 if all are preserved, 1 if none is.

    Compares normalised gradient fields n = g / (|g|^2 + SOURCE_EDGE^2)^(1/2) of the brightness, as multimodal image
    registration does (Haber and Modersitzki 2006). There the loss is the mean of 1 - (n_source n_fake)^2; here it is
    1 - |n_source n_fake|, weighted by |n_source|^2, so that new structure in flat areas costs nothing. For `fake`,
    FAKE_EDGE replaces SOURCE_EDGE. So an edge stays in place, but its dark side may become the bright one, as bone does
    between CT and MR, and it may become faint, as roofs do in a map. Brightness and colour do not matter. Equal images
    have a small loss, since a faint edge counts in part.

    `fake` and `source`: `(B, C, H, W)` in [-1, 1], with equal shapes except C, sides of at least 2. Returns the mean
    over images, a scalar in float32. An image without edges counts 0.
    """
    fake_gradient, source_gradient = _gradient(fake), _gradient(source)
    source_strength, fake_strength = source_gradient.square().sum(1), fake_gradient.square().sum(1)
    norm = ((source_strength + SOURCE_EDGE**2) * (fake_strength + FAKE_EDGE**2)).sqrt()
    similarity = (fake_gradient * source_gradient).sum(1).abs() / norm
    weight = source_strength / (source_strength + SOURCE_EDGE**2)
    lost = weight * (1 - similarity)
    return (lost.sum((1, 2)) / (weight.sum((1, 2)) + 1e-6)).mean()


def _gradient(images: Tensor) -> Tensor:
    """Return the brightness differences to the pixels to the right and below, `(B, 2, H - 1, W - 1)`, in float32."""
    brightness = _brightness(images)
    center = brightness[:, :-1, :-1]
    return torch.stack([brightness[:, :-1, 1:] - center, brightness[:, 1:, :-1] - center], dim=1)


def _brightness(images: Tensor) -> Tensor:
    """Return the brightness `(B, H, W)` of `(B, C, H, W)`: Rec. 601 luma of three channels, else their mean."""
    images = images.float()
    if images.shape[1] != 3:
        return images.mean(1)
    red, green, blue = images.unbind(1)
    return 0.299 * red + 0.587 * green + 0.114 * blue


TEMPERATURE = 0.07
"""The temperature T of `patch_nce_loss`, as in the paper."""


def patch_nce_loss(queries: Tensor, keys: Tensor) -> Tensor:
    """Return the PatchNCE loss: query i must match key i among all keys of the same image (Park et al. 2020, eq. 2, 3).

    It is the mean over queries v, with key v+, of -log(exp(v v+ / T) / sum over all keys v' of exp(v v' / T)).
    `queries` (from translations) and `keys` (from inputs): unit vectors `(B, n, C)`. `keys` get no gradient.
    Returns a scalar in float32, about log n for random features.
    """
    with without_autocast(queries):
        similarity = queries.float() @ keys.detach().float().mT / TEMPERATURE
        return (similarity.logsumexp(2) - similarity.diagonal(dim1=1, dim2=2)).mean()


def sample_locations(uniform: Tensor, total: int) -> Tensor:
    """Draw n = min(count, `total`) distinct indices below `total` per image, `(B, n)`.

    `uniform`: `(count, B)` in [0, 1). Stratified: one index from each of n ranges of about equal length, which needs no
    sorting and covers the image.
    """
    count = min(len(uniform), total)
    bounds = torch.arange(count + 1, device=uniform.device) * total // count
    lengths = bounds.diff()[:, None]
    offsets = (uniform[:count] * lengths).long().clamp(max=lengths - 1)
    return (bounds[:-1, None] + offsets).T


def gather_at(features: Tensor, locations: Tensor) -> Tensor:
    """Return the features `(B, n, C)` of maps `(B, C, H, W)` at `locations`, flat pixel indices `(B, n)`."""
    pixels = features.permute(0, 2, 3, 1).flatten(1, 2)
    return pixels.gather(1, locations[:, :, None].expand(-1, -1, pixels.shape[2]))
