"""Loss scaling for float16: gradients are computed of a larger loss, so that small ones do not vanish."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn


class LossScale:
    """One factor for the losses of all phases (Micikevicius et al. 2018, section 3.2), found while training.

    Gradients that are not finite where the loss is, at a factor above 1, are an overflow: the phase's networks are not
    updated, and the factor is halved at the end of the step. After `PATIENCE` steps in a row without one it is doubled.
    All of it is on the device, so that nothing waits and a captured step contains it.
    """

    START, PATIENCE, MOST = 2.0**16, 2000, 2.0**32

    def __init__(self, device: torch.device):
        self.factor = torch.full((), self.START, device=device)
        self.skips = torch.zeros((), device=device)
        """1 if the phase at hand must not be updated, else 0: `found_inf` of fused optimizers."""
        self._overflow, self._clean = (torch.zeros((), device=device) for _ in range(2))

    @torch.no_grad()
    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide gradients by the factor. It is a power of 2, so they are what they would be without it."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        torch._foreach_mul_(gradients, 1 / self.factor)

    @torch.no_grad()
    def see(self, flags: Tensor) -> Tensor:
        """Return `finite_flags` of unscaled gradients with the last one set if the only problem is an overflow."""
        over = flags[:-1].all() & ~flags[-1] & (self.factor > 1)
        self.skips.copy_(over)
        self._overflow.copy_(torch.maximum(self._overflow, self.skips))
        return torch.cat([flags[:-1], (flags[-1] | over).view(1)])

    @torch.no_grad()
    def adapt(self) -> None:
        """End a step: halve the factor after an overflow, or double it after `PATIENCE` steps without one."""
        over, clean = self._overflow > 0, self._clean + 1
        grows = ~over & (clean >= self.PATIENCE)
        self.factor.mul_(torch.where(over, 0.5, torch.where(grows, 2.0, 1.0))).clamp_(1, self.MOST)
        self._clean.copy_(torch.where(over | grows, 0, clean))
        self._overflow.zero_()

    def tensors(self) -> list[Tensor]:
        """Return every tensor that a step changes."""
        return [self.factor, self.skips, self._overflow, self._clean]

    def state_dict(self) -> list[float]:
        """The factor, and the steps without an overflow since it changed."""
        return [float(self.factor), float(self._clean)]

    def load_state_dict(self, state: Sequence[float]) -> None:
        self.factor.fill_(state[0])
        self._clean.fill_(state[1])
