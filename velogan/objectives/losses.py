"""Losses: adversarial ones on logits, the gradient penalty, L1 and the contrast of patches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

GanLossName = Literal["lsgan", "vanilla", "wgangp", "hinge"]

Logits = Tensor | Sequence[Tensor]
"""What a discriminator gives: logits of any shape, or those of several heads."""


def gan_loss(logits: Logits, *, real: bool, kind: GanLossName, smoothing: float = 0.0) -> Tensor:
    """The discriminator's loss of `logits` that should all say real, or all fake; a scalar in float32.

    lsgan: squared distance to 1 / 0 (Mao et al. 2017, eq. 2). vanilla: binary cross entropy (Goodfellow et al.
    2014, eq. 1). wgangp: the negative / positive mean (Arjovsky et al. 2017, eq. 2). hinge: see Miyato et al. 2018, eq.
    16. Losses of several heads are added (Sauer et al. 2021). With `smoothing`, lsgan and vanilla ask for so
    much less than 1 of real images (Salimans et al. 2016, section 3.4: one-sided label smoothing).
    """
    if not isinstance(logits, Tensor):
        return torch.stack([gan_loss(head, real=real, kind=kind, smoothing=smoothing) for head in logits]).sum()
    logits = logits.float()
    if kind == "hinge":
        return F.relu(1 - logits if real else 1 + logits).mean()
    if kind == "wgangp":
        return -logits.mean() if real else logits.mean()
    target = torch.full_like(logits, (1 - smoothing) * real)
    if kind == "lsgan":
        return F.mse_loss(logits, target)
    return F.binary_cross_entropy_with_logits(logits, target)


def fooling_loss(logits: Logits, *, kind: GanLossName) -> Tensor:
    """The generator's loss of `logits` on its images, which should say real; a scalar in float32.

    hinge has a form of its own, the negative mean (Miyato et al. 2018, eq. 17).
    """
    return gan_loss(logits, real=True, kind="wgangp" if kind == "hinge" else kind)


def gradient_penalty(critic: Callable[[Tensor], Tensor], *, real: Tensor, fake: Tensor, mix: Tensor) -> Tensor:
    """The mean of (|gradient of the critic at a mixture| - 1)^2 (Gulrajani et al. 2017, eq. 3).

    `real` and `fake` are `(B, C, H, W)`; see `mixed` for `mix`.
    """
    between = mixed(real, fake, mix).detach().requires_grad_()
    logits = critic(between).float()
    (gradient,) = torch.autograd.grad(logits.sum(), between, create_graph=True)
    return ((gradient.float().flatten(1).norm(dim=1) - 1) ** 2).mean()


def zero_centred_penalty(discriminator: Callable[[Tensor], Logits], images: Tensor) -> Tensor:
    """The mean over `images`, `(B, C, H, W)`, of |gradient of the discriminator there|^2.

    On real images it is R1 without its factor (Mescheder et al. 2018, eq. 9). A discriminator of n patches counts as
    the sum of its logits over the root of n: as long as patches see different pixels, this is the mean over patches of
    the squared gradient of one. So the weight of the penalty means the same for any size of image.
    """
    images = images.detach().requires_grad_()
    logits = discriminator(images)
    heads = [logits] if isinstance(logits, Tensor) else logits
    judged = torch.stack([head.float().sum() / head[0].numel() ** 0.5 for head in heads]).sum()
    (gradient,) = torch.autograd.grad(judged, images, create_graph=True)
    return gradient.float().flatten(1).square().sum(1).mean()


def mixed(real: Tensor, fake: Tensor, mix: Tensor) -> Tensor:
    """Mixtures of images `(B, C, H, W)`; `mix`, `(B,)` in [0, 1), is the share of the real one in each."""
    share = mix.view(-1, 1, 1, 1)
    return share * real + (1 - share) * fake


def l1_loss(made: Tensor, wanted: Tensor) -> Tensor:
    """The mean of |made - wanted| in float32: an L1 loss whose gradient keeps the layout of tensors in memory."""
    return (made.float() - wanted.float()).abs().sum() / made.numel()


def gradient_consistency(made: Tensor, given: Tensor) -> Tensor:
    """1 less the gradient correlation of images, between 0 and 2: are edges where they were, and no others?

    Of the brightness of both images, the differences of neighbours across and down are correlated, over the whole image
    (Penney et al. 1998, gradient correlation; Hiasa et al. 2018 have it as a loss of CycleGAN). How bright or coloured
    an image is does not count, nor how strong all its edges are. `made` and `given` are `(B, C, H, W)`, equal but for
    C, sides of at least 2. Returns the mean over the images, a scalar in float32; an image without edges counts 1.
    """
    x, y = _brightness(made), _brightness(given)
    across = _correlation(x[..., 1:] - x[..., :-1], y[..., 1:] - y[..., :-1])
    down = _correlation(x[:, 1:] - x[:, :-1], y[:, 1:] - y[:, :-1])
    return 1 - (across + down).mean() / 2


def _brightness(images: Tensor) -> Tensor:
    """`(B, H, W)` of `(B, C, H, W)`: Rec. 601 luma of three channels, else the channels' mean."""
    images = images.float()
    if images.shape[1] != 3:
        return images.mean(1)
    red, green, blue = images.unbind(1)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def _correlation(x: Tensor, y: Tensor) -> Tensor:
    """The normalised cross-correlation of each `(H, W)` of `x` and `y`, `(B, H, W)`; 0 where one is flat."""
    x, y = x - x.mean((1, 2), keepdim=True), y - y.mean((1, 2), keepdim=True)
    power = x.square().sum((1, 2)) * y.square().sum((1, 2))
    return (x * y).sum((1, 2)) / (power + 1e-6).sqrt()


TEMPERATURE = 0.07
"""Divides the similarities in `patch_contrast`, as Park et al. have it."""


def patch_contrast(fake: Tensor, real: Tensor, uniform: Tensor) -> Tensor:
    """PatchNCE (Park et al. 2020, eq. 3): each position of `fake` should be most similar to the same one of `real`.

    `fake` and `real` are features `(B, C, H, W)`; they are normalised to length 1 here. `uniform`, `(n, B)` in [0, 1)
    with n at most H W, chooses n positions of each image, one from each of n equal parts. Returns the cross entropy
    over the n positions, a scalar in float32.
    """
    n, places = len(uniform), fake.shape[2] * fake.shape[3]
    starts = torch.arange(n, device=fake.device)[:, None]
    index = ((starts + uniform) * (places / n)).long().clamp_(max=places - 1).T[:, None]  # (B, 1, n)

    def chosen(x: Tensor) -> Tensor:
        picked = x.float().flatten(2).gather(2, index.expand(-1, x.shape[1], -1))
        return F.normalize(picked, dim=1)

    similarity = torch.einsum("bci,bcj->bij", chosen(fake), chosen(real)) / TEMPERATURE
    return F.cross_entropy(similarity.flatten(0, 1), torch.arange(n, device=fake.device).repeat(len(fake)))
