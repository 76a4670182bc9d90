"""Adversarial losses on logits, and the gradient penalty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

GanLossName = Literal["lsgan", "vanilla", "wgangp"]


def gan_loss(logits: Tensor, *, real: bool, kind: GanLossName) -> Tensor:
    """How far `logits` (any shape) are from calling everything `real` (or fake); a scalar in float32.

    lsgan: squared distance to 1 / 0 (Mao et al. 2017, eq. 2). vanilla: binary cross entropy (Goodfellow et al.
    2014, eq. 1). wgangp: the negative / positive mean (Arjovsky et al. 2017, eq. 2).
    """
    logits = logits.float()
    if kind == "wgangp":
        return -logits.mean() if real else logits.mean()
    target = torch.full_like(logits, float(real))
    if kind == "lsgan":
        return F.mse_loss(logits, target)
    return F.binary_cross_entropy_with_logits(logits, target)


def gradient_penalty(critic: Callable[[Tensor], Tensor], *, real: Tensor, fake: Tensor, mix: Tensor) -> Tensor:
    """The mean of (|gradient of the critic at a mixture| - 1)^2 (Gulrajani et al. 2017, eq. 3).

    `real` and `fake` are `(B, C, H, W)`; `mix`, `(B,)` in [0, 1), says how much of the real image is in each.
    """
    share = mix.view(-1, 1, 1, 1)
    between = (share * real + (1 - share) * fake).detach().requires_grad_()
    logits = critic(between).float()
    (gradient,) = torch.autograd.grad(logits.sum(), between, create_graph=True)
    return ((gradient.float().flatten(1).norm(dim=1) - 1) ** 2).mean()


def mean_deviation(made: Tensor, wanted: Tensor) -> Tensor:
    """The mean of |made - wanted| in float32: an L1 loss whose gradient keeps the layout of tensors in memory."""
    return (made.float() - wanted.float()).abs().sum() / made.numel()


def patch_contrast(fake: Tensor, real: Tensor, uniform: Tensor, *, temperature: float = 0.07) -> Tensor:
    """How hard positions of `fake` are to tell apart by `real` there (PatchNCE, Park et al. 2020, eq. 3).

    `fake` and `real` are features `(B, C, H, W)`, scaled to length 1 here. `uniform`, `(n, B)` in [0, 1) with n at most
    H W, chooses n positions of each image, one from each of n equal parts. A scalar in float32: cross entropy over n.
    """
    n, places = len(uniform), fake.shape[2] * fake.shape[3]
    starts = torch.arange(n, device=fake.device)[:, None]
    index = ((starts + uniform) * (places / n)).long().clamp_(max=places - 1).T[:, None]  # (B, 1, n)

    def chosen(x: Tensor) -> Tensor:
        picked = x.float().flatten(2).gather(2, index.expand(-1, x.shape[1], -1))
        return F.normalize(picked, dim=1)

    likeness = torch.einsum("bci,bcj->bij", chosen(fake), chosen(real)) / temperature
    return F.cross_entropy(likeness.flatten(0, 1), torch.arange(n, device=fake.device).repeat(len(fake)))
