"""One step: every due phase's loss, backward pass and update, in order, and what follows them.

The readable reference of the fast paths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from velogan.engine.nonfinite import Latch, NonFiniteError, broken_names, find_origin, finite_flags
from velogan.objectives.base import Carry, Out, Phase, Runner, parts_run_by
from velogan.types import Batch, Nets


class After(Protocol):
    """What follows the phases of a step, on the device and without waiting for it: statistics, averages of weights."""

    def follow(self, losses: Mapping[str, Tensor]) -> None:
        """Takes the step's `phase/term` scalars, which the next step may overwrite."""
        ...

    def tensors(self) -> Iterable[Tensor]:
        """All that `follow` changes; what is new among them began as zeros."""
        ...


class Step:
    """Plays `phases` on batches by split.

    `nets` hold the weights; `forward_nets` are what the losses call: the same networks, or faster equivalents over the
    same weights. With `autocast`, convolutions run in that type; weights, losses and updates stay float32.
    `prepare` makes, by split, of what a loader hands over the batch that losses see (crops, flips, normalises), on the
    device; where a split has none, batches are handed over ready. Images are handed over in channels-last memory where
    that is asked for. `runner` runs the parts of a loss that do not depend on each other; without one they run in
    order.

    Before an update, the phase's loss terms and gradients are looked at: where one is not finite, the step ends with a
    NonFiniteError. With `check_later` (fused Adam only) nothing waits for the device: from the first such phase on
    weights and moments stay as they are, and `check` raises the error.
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
        return self.play(self.due(number), batches, number=number, after=after)

    def due(self, number: int) -> list[Phase]:
        """The phases that step `number` runs."""
        return [phase for phase in self.phases if number % phase.every == 0]

    def play(
        self,
        phases: Sequence[Phase],
        batches: Mapping[str, Batch],
        *,
        number: int | Tensor,
        after: Sequence[After] = (),
    ) -> dict[str, Tensor]:
        """Runs `phases`, whatever is due. With `check_later` the `number` of the step may be on the device."""
        batches = {split: self._ready(split, batch) for split, batch in batches.items()}
        carries: dict[str, dict[str, Tensor]] = {}
        seen: dict[str, Tensor] = {}
        for phase in phases:
            carry = carries.setdefault(phase.split, {})
            with record_function(phase.name):
                seen |= self._play(phase, batches[phase.split], carry, number)
        for one in after:
            one.follow(seen)
        return seen

    def check(self) -> None:
        """With `check_later`, waits for the device; NonFiniteError where a step since the start was broken."""
        if self.latch is not None:
            self.latch.check()

    def origin(self, error: NonFiniteError, batches: Mapping[str, Batch]) -> str:
        """Replays the broken phase of `error` on its `batches` and names where in the networks it began.

        With `check_later` what earlier phases carried is computed anew, after their update.
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
        """The batch that losses see."""
        return self.laid_out(self.prepare[split](batch) if split in self.prepare else batch)

    def laid_out(self, batch: Batch) -> Batch:
        """`batch` with its images in the memory layout that the networks are given."""
        return {k: v.contiguous(memory_format=self.layout) if v.ndim == 4 else v for k, v in batch.items()}

    def _play(self, phase: Phase, batch: Batch, carry: dict[str, Tensor], number: int | Tensor) -> dict[str, Tensor]:
        optimizer = self.optimizers[phase.name]
        optimizer.zero_grad(set_to_none=True)
        held = self.nets.values() if self.latch is None else ()
        buffers = [(buffer, buffer.clone()) for net in held for buffer in net.buffers()]
        out = self._loss(phase, self.forward_nets, batch=batch, carry=carry)
        out.total.backward()
        terms = {**out.terms, "total": out.total}
        flags = finite_flags(terms.values(), [p for group in optimizer.param_groups for p in group["params"]])
        names = [*terms, "gradients"]
        if self.latch is not None:
            self.latch.see(phase.name, names, flags, number=number)
        elif not flags.all():
            for buffer, before in buffers:  # a norm's running statistics took in what is broken
                buffer.copy_(before)
            raise NonFiniteError(phase.name, broken_names(names, flags), number=int(number), carry=carry)
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
