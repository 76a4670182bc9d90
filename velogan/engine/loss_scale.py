"""Loss scaling for float16: the loss is multiplied before the backward pass, so that small gradients do not vanish."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn


class LossScale:
    """One dynamic factor for the losses of all phases (Micikevicius et al. 2018, section 3.2).

    A finite loss with gradients that are not finite is an overflow if the factor is above 1: the phase's networks are
    not updated, and the factor is halved at the end of the step. After `PATIENCE` steps in a row without an overflow
    the factor is doubled. All state is on the device, so that the host need not wait and a step can be captured.
    """

    START, PATIENCE = 2.0**16, 2000
    MAX = 2.0**32

    def __init__(self, device: torch.device):
        self.factor = torch.full((), self.START, device=device)
        self.skip = torch.zeros((), device=device)
        """1 if the current phase must not update its networks, else 0; the `found_inf` of fused optimizers."""
        self._overflow, self._clean_steps = (torch.zeros((), device=device) for _ in range(2))

    @torch.no_grad()
    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide the gradients by the factor. This is exact, because the factor is a power of 2."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        torch._foreach_mul_(gradients, 1 / self.factor)

    @torch.no_grad()
    def check_overflow(self, flags: Tensor) -> Tensor:
        """Set `skip`; return `flags`, from `finite_flags` after `unscale`; an overflow sets the last one to true."""
        overflow = flags[:-1].all() & ~flags[-1] & (self.factor > 1)
        self.skip.copy_(overflow)
        self._overflow.copy_(torch.maximum(self._overflow, self.skip))
        return torch.cat([flags[:-1], (flags[-1] | overflow).view(1)])

    @torch.no_grad()
    def adapt(self) -> None:
        """Halve the factor after a step with overflow, or double it after `PATIENCE` steps without one."""
        overflow, clean_steps = self._overflow > 0, self._clean_steps + 1
        grows = ~overflow & (clean_steps >= self.PATIENCE)
        self.factor.mul_(torch.where(overflow, 0.5, torch.where(grows, 2.0, 1.0))).clamp_(1, self.MAX)
        self._clean_steps.copy_(torch.where(overflow | grows, 0, clean_steps))
        self._overflow.zero_()

    def state_tensors(self) -> list[Tensor]:
        """Return every tensor that a step changes."""
        return [self.factor, self.skip, self._overflow, self._clean_steps]

    def state_dict(self) -> list[float]:
        """Return the factor, and the number of steps without an overflow since the factor changed."""
        return [float(self.factor), float(self._clean_steps)]

    def load_state_dict(self, state: Sequence[float]) -> None:
        self.factor.fill_(state[0])
        self._clean_steps.fill_(state[1])
