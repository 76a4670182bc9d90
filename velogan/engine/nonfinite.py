"""Infinities and NaNs: found before they reach the weights, and traced to their origin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from velogan.engine.processes import EndOfRun
from velogan.files import counted
from velogan.objectives.base import Carry, Out
from velogan.types import Nets


class NonFiniteError(EndOfRun):
    """A phase gave an infinity or a NaN; its networks were not updated.

    `phase` and `number` (of the step) say when; `found` names the loss terms, or "gradients"; `carries` are what the
    parts of the phase were given, where known. Callers add what they know: `images` seen before the step, the `origin`
    within the networks, `advice` for the user.
    """

    def __init__(self, phase: str, found: Sequence[str], *, number: int, carries: Sequence[Carry] | None = None):
        super().__init__(phase, found, number)
        self.phase, self.found, self.number, self.carries = phase, found, number, carries
        self.images: int | None = None
        self.origin = self.advice = ""

    def __str__(self) -> str:
        seen = "" if self.images is None else f" ({counted(self.images, 'image')} seen)"
        text = f"not a finite number in step {self.number:,}{seen}, phase {self.phase}: {', '.join(self.found)}"
        return text + (f"; first in {self.origin}" if self.origin else "") + (f"\n{self.advice}" if self.advice else "")


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
        """Takes a phase's `finite_flags`; only the first break is recorded. `number` is the step's."""
        names, kept = self._broken_flags.setdefault(phase, (names, torch.zeros_like(flags)))
        first = (self.broken == 0) & ~flags.all()
        kept.copy_(torch.where(first, ~flags, kept))
        self.number.copy_(torch.where(first, number, self.number))
        self.broken.copy_(torch.maximum(self.broken, first.float()))

    def check(self) -> None:
        """Waits for the device. NonFiniteError if a phase was broken since the start."""
        for phase, (names, broken) in self._broken_flags.items() if self.broken.item() else ():
            if broken.any():
                raise NonFiniteError(phase, broken_names(names, ~broken), number=int(self.number))

    def tensors(self) -> list[Tensor]:
        """Every tensor that `see` changes. Tensors that `see` adds start as zeros."""
        return [self.broken, self.number, *(broken for _, broken in self._broken_flags.values())]


def broken_names(names: list[str], flags: Tensor) -> list[str]:
    """Those of `names` whose flag says that they are not finite."""
    return [name for name, finite in zip(names, flags.tolist()) if not finite]


NOTHING = "nothing: the plain layers give finite numbers, try engine.kernels=plain"
"""What `find_origin` says where it finds none."""


def find_origin(loss: Callable[[Nets], Out], nets: Nets) -> str:
    """Computes `loss` and its gradients on plain `nets`, and names the first thing that is not finite.

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
        return f"the loss itself; the networks' outputs are finite, the largest is {watch.peak}"
    if watch.gradient:
        return f"the gradient of the output of {watch.gradient}"
    broken = (name for name, weight in weights if weight.grad is not None and not weight.grad.norm().isfinite())
    name = next(broken, "")
    return f"the gradient of {name}" if name else NOTHING


class _Watch:
    """What hooks find: the first module with a broken input or output, the first broken gradient, the largest value."""

    def __init__(self):
        self.output = self.gradient = self.peak = ""
        self._largest = -1.0

    def see(self, name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if self.output:
            return
        if not all(value.isfinite().all() for value in inputs):
            self.output = f"the input of {name}"
        elif not output.isfinite().all():
            self.output = name
        else:
            largest = float(output.detach().abs().max())
            if largest > self._largest:
                self._largest, self.peak = largest, f"{largest:.3g} from {name}"
            if output.requires_grad:
                output.register_hook(partial(self._see_gradient, name))

    def _see_gradient(self, name: str, gradient: Tensor) -> None:
        if not self.gradient and not gradient.isfinite().all():
            self.gradient = name
