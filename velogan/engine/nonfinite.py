"""Infinities and NaNs, found before they reach weights that are saved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from velogan.engine.processes import EndOfRun
from velogan.files import pluralize


class NonFiniteError(EndOfRun):
    """A phase gave an infinity or a NaN; its networks were not updated, and the run ends.

    `phase` and `number` (of the step) say when; `found` names the loss terms, or "gradients". Callers add what they
    know: `images` seen before the step, and `advice` for the user.
    """

    def __init__(self, phase: str, found: Sequence[str], *, number: int):
        super().__init__(phase, found, number)
        self.phase, self.found, self.number = phase, found, number
        self.images: int | None = None
        self.advice = ""

    def __str__(self) -> str:
        seen = "" if self.images is None else f" ({pluralize(self.images, 'image')} seen)"
        text = f"not a finite number in step {self.number:,}{seen}, phase {self.phase}: {', '.join(self.found)}"
        return text + (f"\n{self.advice}" if self.advice else "")


def finite_flags(terms: Iterable[Tensor], parameters: Iterable[nn.Parameter]) -> Tensor:
    """One flag for each scalar in `terms`, and a last one for the gradients of `parameters`: true if finite.

    Returns bools on the terms' device without waiting for it. Gradients are checked by their norms, the cheapest pass
    over them. Gradients whose squares overflow count as broken, as they would make Adam's second moment infinite.
    """
    values = [term.detach().float() for term in terms]
    norms = torch._foreach_norm([p.grad for p in parameters if p.grad is not None])
    return torch.stack([*values, torch.stack([*norms]).sum()]).isfinite()


class Latch:
    """Records the first break on the device, so that the host need not wait for the device in each step.

    `broken`, float32, is 0, and 1 after the first break. A fused optimizer that has it as its `found_inf` then no
    longer changes weights and moments. `number`, int64, is the number of the broken step.
    """

    def __init__(self, device: torch.device):
        self.broken = torch.zeros((), device=device)
        self.number = torch.zeros((), device=device, dtype=torch.int64)
        self._broken_flags: dict[str, tuple[list[str], Tensor]] = {}

    def see(self, phase: str, names: list[str], flags: Tensor, *, number: int | Tensor) -> None:
        """Record a phase's `finite_flags` if they are the first break; `number` is the step's."""
        names, kept = self._broken_flags.setdefault(phase, (names, torch.zeros_like(flags)))
        first = (self.broken == 0) & ~flags.all()
        kept.copy_(torch.where(first, ~flags, kept))
        self.number.copy_(torch.where(first, number, self.number))
        self.broken.copy_(torch.maximum(self.broken, first.float()))

    def check(self) -> None:
        """Wait for the device. Raises NonFiniteError if a phase was broken since the start."""
        for phase, (names, broken) in self._broken_flags.items() if self.broken.item() else ():
            if broken.any():
                raise NonFiniteError(phase, broken_names(names, ~broken), number=int(self.number))

    def tensors(self) -> list[Tensor]:
        """Return every tensor that `see` changes. Tensors that `see` adds start as zeros."""
        return [self.broken, self.number, *(broken for _, broken in self._broken_flags.values())]


def broken_names(names: list[str], flags: Tensor) -> list[str]:
    """Return those of `names` whose flag is false."""
    return [name for name, finite in zip(names, flags.tolist()) if not finite]
