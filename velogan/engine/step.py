"""One step: loss, backward pass and update of each due phase, in order, then the work after them.

This is the readable form; the fast paths must compute the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from velogan.engine.nonfinite import Latch, NonFiniteError, broken_names, find_origin, finite_flags
from velogan.engine.optimizers import optimizers_of
from velogan.objectives.base import Carry, Out, Phase, Runner, parts_run_by
from velogan.types import Batch, Nets


class After(Protocol):
    """Work on the device after the phases of a step, without waiting for it: statistics, averages of weights."""

    def follow(self, losses: Mapping[str, Tensor]) -> None:
        """Takes the step's `phase/term` scalars, which the next step may overwrite."""
        ...

    def tensors(self) -> Iterable[Tensor]:
        """Every tensor that `follow` changes. Tensors that `follow` adds start as zeros."""
        ...


class Step:
    """Runs `phases` on batches by split.

    `nets` hold the weights. The losses call `forward_nets`: the same networks, or faster equivalents over the same
    weights. With `autocast`, convolutions run in that type; weights, losses and updates stay float32. `prepare` holds a
    function by split: it turns the loader's data into the batch for the losses (crop, flip, normalise), on the device.
    Splits without one have ready batches. `channels_last` is the memory layout of images. `runner` runs the independent
    parts of a loss; without it they run in order.

    Before an update, the phase's loss terms and gradients are checked: if one is not finite, the step ends with a
    NonFiniteError. With `check_later` (fused optimizers only) nothing waits for the device: after the first broken
    phase weights and moments no longer change, and `check` raises the error.
    """

    def __init__(
        self,
        phases: Sequence[Phase],
        *,
        nets: Mapping[str, nn.Module],
        optimizers: Mapping[str, torch.optim.Optimizer],
        forward_nets: Mapping[str, nn.Module] | None = None,
        autocast: torch.dtype | None = None,
        channels_last: bool = False,
        check_later: bool = False,
        runner: Runner | None = None,
        prepare: Mapping[str, Callable[[Batch], Batch]] | None = None,
    ):
        self.phases = list(phases)
        self.nets = nets
        self.forward_nets = forward_nets or nets
        self.optimizers = optimizers
        self.autocast = autocast
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        self.runner, self.prepare = runner, prepare or {}
        self.latch: Latch | None = None
        if check_later:
            self.latch = Latch(next(parameter.device for net in nets.values() for parameter in net.parameters()))
            for optimizer in optimizers.values():
                optimizer.found_inf = self.latch.broken  # pyright: ignore[reportAttributeAccessIssue]

    def __call__(
        self, batches: Mapping[str, Batch], *, number: int = 0, after: Sequence[After] = ()
    ) -> dict[str, Tensor]:
        """Runs step `number`, then `after`; returns `phase/term` scalars, detached, without waiting for the device."""
        return self.run_phases(self.due(number), batches, number=number, after=after)

    def due(self, number: int) -> list[Phase]:
        """The phases that step `number` runs."""
        return [phase for phase in self.phases if number % phase.every == 0]

    def run_phases(
        self,
        phases: Sequence[Phase],
        batches: Mapping[str, Batch],
        *,
        number: int | Tensor,
        after: Sequence[After] = (),
    ) -> dict[str, Tensor]:
        """Runs the given `phases`, due or not. With `check_later` the step's `number` may be on the device."""
        batches = {split: self._ready(split, batch) for split, batch in batches.items()}
        carries: dict[str, dict[str, Tensor]] = {}
        seen: dict[str, Tensor] = {}
        for phase in phases:
            carry = carries.setdefault(phase.split, {})
            with record_function(phase.name):
                seen |= self._run_phase(phase, batches[phase.split], carry, number)
        for one in after:
            one.follow(seen)
        return seen

    def check(self) -> None:
        """With `check_later`, waits for the device; NonFiniteError if a step since the start was broken."""
        if self.latch is not None:
            self.latch.check()

    def origin(self, error: NonFiniteError, batches: Mapping[str, Batch]) -> str:
        """Runs the broken phase of `error` again on its `batches` and names where in the networks the break began.

        With `check_later` the carry of earlier phases is computed anew, with the updated weights.
        """
        carries: dict[str, dict[str, Tensor]] = {}
        for phase in self.phases:
            batch, carry = self._ready(phase.split, batches[phase.split]), carries.setdefault(phase.split, {})
            if phase.name == error.phase:
                handed = carry if error.carry is None else error.carry
                return find_origin(partial(self._loss, phase, batch=batch, carry=handed), self.nets)
            if error.carry is None and error.number % phase.every == 0:
                out = self._loss(phase, self.nets, batch=batch, carry=carry)
                carry |= {name: value.detach() for name, value in out.carry.items()}
        return ""

    def _ready(self, split: str, batch: Batch) -> Batch:
        """The batch for the losses."""
        return self.laid_out(self.prepare[split](batch) if split in self.prepare else batch)

    def laid_out(self, batch: Batch) -> Batch:
        """`batch` with its images in the memory layout that the networks are given."""
        return {k: v.contiguous(memory_format=self.layout) if v.ndim == 4 else v for k, v in batch.items()}

    def _run_phase(
        self, phase: Phase, batch: Batch, carry: dict[str, Tensor], number: int | Tensor
    ) -> dict[str, Tensor]:
        optimizers = optimizers_of(phase, self.optimizers)
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        held = self.nets.values() if self.latch is None else ()
        buffers = [(buffer, buffer.clone()) for net in held for buffer in net.buffers()]
        out = self._loss(phase, self.forward_nets, batch=batch, carry=carry)
        out.total.backward()
        terms = {**out.terms, "total": out.total}
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        flags = finite_flags(terms.values(), [p for group in groups for p in group["params"]])
        names = [*terms, "gradients"]
        if self.latch is not None:
            self.latch.see(phase.name, names, flags, number=number)
        elif not flags.all():
            for buffer, before in buffers:  # a norm's running statistics contain the broken values
                buffer.copy_(before)
            raise NonFiniteError(phase.name, broken_names(names, flags), number=int(number), carry=carry)
        for optimizer in optimizers:
            optimizer.step()
        carry |= {name: value.detach() for name, value in out.carry.items()}
        return {f"{phase.name}/{name}": value.detach() for name, value in terms.items()}

    def _loss(self, phase: Phase, nets: Nets, *, batch: Batch, carry: Carry) -> Out:
        for role, net in self.nets.items():
            net.requires_grad_(role in phase.trains)
        device = next(iter(batch.values())).device.type
        casts = torch.autocast(device, dtype=self.autocast, enabled=self.autocast is not None)
        with casts, parts_run_by(self.runner):
            return phase.loss(nets, batch, carry)
