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
