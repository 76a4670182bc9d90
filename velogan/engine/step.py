"""One step: loss, backward pass and update of each phase, in order, then the work after them.

This is the readable form; the fast paths must compute the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from velogan.engine.distributed import DistributedContext
from velogan.engine.loss_scale import LossScale
from velogan.engine.nonfinite import Latch, NonFiniteError, broken_names, finite_flags
from velogan.engine.optimizers import optimizers_of
from velogan.objectives.base import BranchRunner, LossOutput, Phase, PhaseCache, use_branch_runner
from velogan.types import Batch, Nets


class After(Protocol):
    """Work on the device after the phases of a step, without waiting for it: statistics, averages of weights."""

    def follow(self, losses: Mapping[str, Tensor]) -> None:
        """Process the step's `phase/term` scalars, which the next step may overwrite."""
        ...

    def tensors(self) -> Iterable[Tensor]:
        """Return every tensor that `follow` changes. Tensors that `follow` adds start as zeros."""
        ...


@dataclass
class Portion:
    """A part of a split's batch, and what earlier phases of the step handed on for it."""

    batch: Batch
    cache: dict[str, Tensor] = field(default_factory=dict)

    def hand_on(self, out: LossOutput) -> None:
        self.cache |= {name: value.detach() for name, value in out.cache.items()}


class Step:
    """Runs `phases` on batches by split.

    `nets` hold the weights. The losses call `forward_nets`: the same networks, or faster equivalents over the same
    weights. With `autocast`, convolutions run in that type; weights, losses and updates stay float32. `prepare` holds a
    function by split: it turns the loader's data into the batch for the losses (crop, flip, normalise), on the device.
    Splits without one have ready batches. `channels_last` is the memory layout of images. `runner` runs the independent
    parts of a loss; without it they run in order.

    With `accumulate` N a batch is computed in N equal parts, one after the other, and a phase's update follows the mean
    of their gradients: the memory is that of one part. Each part has its own cache from phase to phase.

    With several `ranks` gradients and terms are the means over all of them, whose batches should be of one size.

    With a `scale`, gradients are those of the scaled loss, divided by it before anything looks at them. Where they
    overflow, the phase's update is left out, which is no break.

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
        runner: BranchRunner | None = None,
        prepare: Mapping[str, Callable[[Batch], Batch]] | None = None,
        accumulate: int = 1,
        scale: LossScale | None = None,
        distributed: DistributedContext | None = None,
    ):
        self.distributed = distributed or DistributedContext()
        self.phases = list(phases)
        self.nets = nets
        self.forward_nets = forward_nets or nets
        self.optimizers = optimizers
        self.autocast = autocast
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        self.runner, self.prepare, self.accumulate, self.scale = runner, prepare or {}, accumulate, scale
        self.latch: Latch | None = None
        if check_later:
            self.latch = Latch(next(parameter.device for net in nets.values() for parameter in net.parameters()))
            for optimizer in optimizers.values():
                skips = self.latch.broken if scale is None else scale.skips
                optimizer.found_inf = skips  # pyright: ignore[reportAttributeAccessIssue]

    def __call__(
        self, batches: Mapping[str, Batch], *, number: int | Tensor = 0, after: Sequence[After] = ()
    ) -> dict[str, Tensor]:
        """Run step `number`, then `after`. With `check_later` the number may be on the device.

        Returns `phase/term` scalars, detached, without waiting for the device.
        """
        parts = {split: self.portions(split, batch) for split, batch in batches.items()}
        losses: dict[str, Tensor] = {}
        for phase in self.phases:
            with record_function(phase.name):
                local_terms = self.gradients(phase, parts[phase.split])
                terms = self.distributed.all_reduce_gradients(self.parameters(phase), local_terms)
                losses |= self.update(phase, terms, number=number)
        if self.scale is not None:
            self.scale.adapt()
        for one in after:
            one.follow(losses)
        return losses

    def check(self) -> None:
        """With `check_later`, wait for the device. Raises NonFiniteError if a step since the start was broken."""
        if self.latch is not None:
            self.latch.check()

    def portions(self, split: str, batch: Batch) -> list[Portion]:
        """Prepare the batch of a split and divide it into the parts of gradient accumulation."""
        whole = self.laid_out(self.prepare[split](batch) if split in self.prepare else batch)
        if self.accumulate == 1:
            return [Portion(whole)]
        cut = {name: value.chunk(self.accumulate, 1 if name == "uniform" else 0) for name, value in whole.items()}
        return [Portion({name: pieces[number] for name, pieces in cut.items()}) for number in range(self.accumulate)]

    def laid_out(self, batch: Batch) -> Batch:
        """Return `batch` with its images in the memory format of the networks."""
        return {k: v.contiguous(memory_format=self.layout) if v.ndim == 4 else v for k, v in batch.items()}

    def parameters(self, phase: Phase) -> list[nn.Parameter]:
        """Return the parameters that the phase updates."""
        groups = (group for optimizer in optimizers_of(phase, self.optimizers) for group in optimizer.param_groups)
        return [parameter for group in groups for parameter in group["params"]]

    def update(self, phase: Phase, terms: dict[str, Tensor], *, number: int | Tensor) -> dict[str, Tensor]:
        """Check the phase's gradients and `terms`, and update its networks; returns the terms as `phase/term`."""
        parameters = self.parameters(phase)
        if self.scale is not None:
            self.scale.unscale(parameters)
        flags = finite_flags(terms.values(), parameters)
        if self.scale is not None:
            flags = self.scale.see(flags)
        names = [*terms, "gradients"]
        if self.latch is not None:
            self.latch.see(phase.name, names, flags, number=number)
            if self.scale is not None:
                self.scale.skips.copy_(torch.maximum(self.scale.skips, self.latch.broken))
        elif not flags.all():
            raise NonFiniteError(phase.name, broken_names(names, flags), number=int(number))
        left_out = self.latch is None and self.scale is not None and bool(self.scale.skips)
        for optimizer in () if left_out else optimizers_of(phase, self.optimizers):
            optimizer.step()
        return {f"{phase.name}/{name}": value for name, value in terms.items()}

    def gradients(self, phase: Phase, parts: Sequence[Portion]) -> dict[str, Tensor]:
        """Leave the mean of the parts' gradients in the networks, and no others.

        Returns the means of their terms, detached; the parts then hold what they hand on.
        """
        for optimizer in optimizers_of(phase, self.optimizers):
            optimizer.zero_grad(set_to_none=True)
        sums: dict[str, Tensor] = {}
        for part in parts:
            out = self._loss(phase, self.forward_nets, batch=part.batch, cache=part.cache)
            total = out.loss if len(parts) == 1 else out.loss / len(parts)
            (total if self.scale is None else total * self.scale.factor).backward()
            for name, value in {**out.logged, "total": out.loss}.items():
                sums[name] = sums[name] + value.detach() if name in sums else value.detach()
            part.hand_on(out)
        if len(parts) > 1:
            sums = {name: value / len(parts) for name, value in sums.items()}
        return sums

    def _loss(self, phase: Phase, nets: Nets, *, batch: Batch, cache: PhaseCache) -> LossOutput:
        for role, net in self.nets.items():
            net.requires_grad_(role in phase.trains)
        device = next(iter(batch.values())).device.type
        casts = torch.autocast(device, dtype=self.autocast, enabled=self.autocast is not None)
        with casts, use_branch_runner(self.runner):
            return phase.loss(nets, batch, cache)
