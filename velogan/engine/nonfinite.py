"""Detection of infinities and NaNs before they reach saved weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from velogan.engine.processes import EndOfRun
from velogan.files import pluralize


class NonFiniteError(EndOfRun):
    """A phase produced an infinity or a NaN; its networks were not updated, and the run ends.

    `names`: loss terms, or "gradients". `number`: the step's number. The trainer sets `images`, the number seen before
    the step, and the session sets `advice` for the user.
    """

    def __init__(self, phase: str, names: Sequence[str], *, number: int):
        super().__init__(phase, names, number)
        self.phase, self.names = phase, names
        self.number = number
        self.images: int | None = None
        self.advice = ""

    def __str__(self) -> str:
        images = "" if self.images is None else f" ({pluralize(self.images, 'image')} seen)"
        text = f"not a finite number in step {self.number:,}{images}, phase {self.phase}: {', '.join(self.names)}"
        return text + (f"\n{self.advice}" if self.advice else "")


def finite_flags(terms: Iterable[Tensor], parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return one flag for each scalar in `terms`, and a last one for the gradients of `parameters`: true if finite.

    The flags are bools on the terms' device; the host does not wait for it. Gradients are checked by their norms, the
    cheapest pass over them; they count as infinite if their squares overflow, because Adam's second moment would, too.
    """
    values = [term.detach().float() for term in terms]
    norms = torch._foreach_norm([p.grad for p in parameters if p.grad is not None])
    return torch.stack([*values, torch.stack([*norms]).sum()]).isfinite()


class NonFiniteLatch:
    """Records the first non-finite phase on the device, so that the host need not wait for the device in each step.

    `is_set`, float32, is 0 before that phase and 1 from then on; as the `found_inf` of a fused optimizer it keeps
    weights and moments unchanged. `number`, int64, is the number of the step with that phase.
    """

    def __init__(self, device: torch.device):
        self.is_set = torch.zeros((), device=device)
        self.number = torch.zeros((), device=device, dtype=torch.int64)
        self._nonfinite: dict[str, tuple[list[str], Tensor]] = {}  # by phase: names, and a flag for each

    def record(self, phase: str, names: list[str], flags: Tensor, *, number: int | Tensor) -> None:
        """Record a phase's `finite_flags` if they are the first that are not all true; `number`: the step's number."""
        _, recorded = self._nonfinite.setdefault(phase, (names, torch.zeros_like(flags)))
        is_first = (self.is_set == 0) & ~flags.all()
        recorded.copy_(torch.where(is_first, ~flags, recorded))
        self.number.copy_(torch.where(is_first, number, self.number))
        self.is_set.copy_(torch.maximum(self.is_set, is_first.float()))

    def check(self) -> None:
        """Wait for the device. Raises NonFiniteError if a phase was recorded as not finite."""
        for phase, (names, recorded) in self._nonfinite.items() if self.is_set.item() else ():
            if recorded.any():
                raise NonFiniteError(phase, nonfinite_names(names, ~recorded), number=int(self.number))

    def state_tensors(self) -> list[Tensor]:
        """Return every tensor that `record` changes. Tensors that `record` adds start as zeros."""
        return [self.is_set, self.number, *(recorded for _, recorded in self._nonfinite.values())]


def nonfinite_names(names: list[str], flags: Tensor) -> list[str]:
    """Return the `names` whose flags are false."""
    return [name for name, is_finite in zip(names, flags.tolist()) if not is_finite]
