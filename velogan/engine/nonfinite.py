"""Numbers that break: infinities and NaNs, found before they reach the weights, and traced to where they began."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from velogan.objectives.base import Carry, Out
from velogan.types import Nets


class NonFiniteError(Exception):
    """A phase gave an infinity or a NaN; its networks were not updated.

    `phase` and `number` (of the step) say when, `found` names the loss terms, or gradients. Whoever passes it on
    adds what it knows: `images` seen before the step, the `origin` within the networks, `advice` for the user.
    """

    def __init__(self, phase: str, found: Sequence[str], *, number: int, carry: Carry | None = None):
        super().__init__(phase, found, number)
        self.phase, self.found, self.number, self.carry = phase, found, number, carry
        self.images: int | None = None
        self.origin = self.advice = ""

    def __str__(self) -> str:
        seen = "" if self.images is None else f" ({self.images:,} images seen)"
        text = f"not a finite number in step {self.number:,}{seen}, phase {self.phase}: {', '.join(self.found)}"
        return text + (f"; first in {self.origin}" if self.origin else "") + (f"\n{self.advice}" if self.advice else "")


def finite_flags(terms: Iterable[Tensor], parameters: Iterable[nn.Parameter]) -> Tensor:
    """Whether each of `terms`, scalars, and as the last flag the gradients of `parameters` are finite.

    Returns bools on the terms' device without waiting for it. Gradients are looked at through their norms, the
    cheapest pass over them: those whose squares overflow count too, as they would make Adam's second moment infinite.
    """
    values = [term.detach().float() for term in terms]
    norms = torch._foreach_norm([p.grad for p in parameters if p.grad is not None])
    return torch.stack([*values, torch.stack([*norms]).sum()]).isfinite()


class Latch:
    """Keeps the first break on the device, so that nobody waits for it while all is well.

    `broken` is float32 0, and 1 from the first break on: a fused Adam that has it as its `found_inf` leaves weights
    and moments as they are from then on. `number`, int64, is that step's.
    """

    def __init__(self, device: torch.device):
        self.broken = torch.zeros((), device=device)
        self.number = torch.zeros((), device=device, dtype=torch.int64)
        self._broken_flags: dict[str, tuple[list[str], Tensor]] = {}

    def see(self, phase: str, names: list[str], flags: Tensor, *, number: int | Tensor) -> None:
        """Takes a phase's `finite_flags`; only the first break leaves a mark. `number` is the step's."""
        names, kept = self._broken_flags.setdefault(phase, (names, torch.zeros_like(flags)))
        first = (self.broken == 0) & ~flags.all()
        kept.copy_(torch.where(first, ~flags, kept))
        self.number.copy_(torch.where(first, number, self.number))
        self.broken.copy_(torch.maximum(self.broken, first.float()))

    def check(self) -> None:
        """Waits for the device; NonFiniteError where a phase broke since the beginning."""
        for phase, (names, broken) in self._broken_flags.items() if self.broken.item() else ():
            if broken.any():
                raise NonFiniteError(phase, broken_names(names, ~broken), number=int(self.number))

    def tensors(self) -> list[Tensor]:
        """All that `see` changes; what is new among them began as zeros."""
        return [self.broken, self.number, *(broken for _, broken in self._broken_flags.values())]


def broken_names(names: list[str], flags: Tensor) -> list[str]:
    """Those of `names` whose flag says that they are not finite."""
    return [name for name, finite in zip(names, flags.tolist()) if not finite]


def find_origin(loss: Callable[[Nets], Out], nets: Nets) -> str:
    """Computes `loss` and its gradients on plain `nets`, and names what is the first not to be finite.

    Modules are named as in `G_A model.10.conv_block.2 (InstanceNorm2d)`. The networks' gradients are overwritten.
    """
    weights = [(f"{role} {name}", p) for role, net in nets.items() for name, p in net.named_parameters()]
    for name, weight in weights:
        if not weight.isfinite().all():
            return f"the weights {name}: an earlier update broke them"
        weight.grad = None
    watch = _Watch()
    handles = [
        module.register_forward_hook(partial(watch.see, f"{role} {name} ({type(module).__name__})"))
        for role, net in nets.items()
        for name, module in net.named_modules()
        if not list(module.children())
    ]
    try:
        out = loss(nets)
        if not watch.output and out.total.isfinite():
            out.total.backward()
    finally:
        for handle in handles:
            handle.remove()
    if watch.output:
        return watch.output
    if not out.total.isfinite():
        return f"the loss itself; what the networks gave is finite, the largest {watch.peak}"
    if watch.gradient:
        return f"the gradient behind {watch.gradient}"
    broken = (name for name, weight in weights if weight.grad is not None and not weight.grad.norm().isfinite())
    name = next(broken, "")
    return f"the gradient of {name}" if name else "nothing: the plain layers compute it well, try engine.kernels=plain"


class _Watch:
    """What hooks see: the first module with a broken input or output, the first broken gradient, the largest value."""

    def __init__(self):
        self.output = self.gradient = self.peak = ""
        self._largest = -1.0

    def see(self, name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if self.output:
            return
        if not all(value.isfinite().all() for value in inputs):
            self.output = f"what {name} is given"
        elif not output.isfinite().all():
            self.output = name
        else:
            largest = float(output.detach().abs().max())
            if largest > self._largest:
                self._largest, self.peak = largest, f"{largest:.3g} behind {name}"
            if output.requires_grad:
                output.register_hook(partial(self._see_gradient, name))

    def _see_gradient(self, name: str, gradient: Tensor) -> None:
        if not self.gradient and not gradient.isfinite().all():
            self.gradient = name
