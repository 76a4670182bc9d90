"""One training step: loss, backward pass and update of each phase, in order, then the post-step hooks.

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
from velogan.engine.nonfinite import NonFiniteError, NonFiniteLatch, finite_flags, nonfinite_names
from velogan.engine.optimizers import optimizers_of
from velogan.objectives.base import BranchRunner, LossOutput, Phase, use_branch_runner
from velogan.types import Batch


class PostStepHook(Protocol):
    """Updates statistics or averaged weights on the device after the phases of a step, without waiting for it."""

    def on_step_end(self, losses: Mapping[str, Tensor]) -> None:
        """Process the step's `phase/term` scalars, which the next step may overwrite."""
        ...

    def state_tensors(self) -> Iterable[Tensor]:
        """Return every tensor that `on_step_end` changes. Tensors that `on_step_end` adds start as zeros."""
        ...


@dataclass
class Microbatch:
    """One of the equal parts of a split's batch, with its own phase cache."""

    batch: Batch
    cache: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Options of a step.

    autocast: dtype of convolutions; weights, losses and updates stay float32. None: float32
    channels_last: whether images are channels-last in memory
    accumulate: number of equal microbatches that a batch is divided into, to save memory; an update uses the mean of
        their gradients
    scale: factor on the losses in backward passes; phases whose gradients overflow are skipped, without an error
    defer_nonfinite_check: never wait for the device (fused optimizers only): after the first non-finite phase weights
        and moments no longer change, and `Step.check` raises the error
    branch_runner: runs the independent branches of a loss; None: they run one after the other
    """

    autocast: torch.dtype | None = None
    channels_last: bool = False
    accumulate: int = 1
    scale: LossScale | None = None
    defer_nonfinite_check: bool = False
    branch_runner: BranchRunner | None = None


class Step:
    """Runs the `phases` of a training step on the batches of their splits.

    `nets` hold the weights. The losses call `forward_nets`: the same networks, or faster equivalents that share their
    weights. `prepare[split]` turns the loader's data into the batch for the losses (crop, flip, normalise), on the
    device; batches of splits without it are used as they are. With several ranks, whose batches should have one size,
    gradients and loss terms are means over all ranks.

    Before an update, the phase's loss terms and gradients are checked: if one is not finite, the step raises
    NonFiniteError, or, if the check is deferred, `check` does.
    """

    def __init__(
        self,
        phases: Sequence[Phase],
        *,
        nets: Mapping[str, nn.Module],
        optimizers: Mapping[str, torch.optim.Optimizer],
        forward_nets: Mapping[str, nn.Module] | None = None,
        prepare: Mapping[str, Callable[[Batch], Batch]] | None = None,
        distributed: DistributedContext | None = None,
        options: StepOptions | None = None,
    ):
        self.phases, self.nets = list(phases), nets
        self.optimizers = optimizers
        self.forward_nets, self.prepare = forward_nets or nets, prepare or {}
        self.distributed, self.options = distributed or DistributedContext(), options or StepOptions()
        self.scale = self.options.scale
        self.latch: NonFiniteLatch | None = None
        if self.options.defer_nonfinite_check:
            self.latch = NonFiniteLatch(next(weight.device for net in nets.values() for weight in net.parameters()))
            for optimizer in optimizers.values():
                skip = self.latch.is_set if self.scale is None else self.scale.skip
                optimizer.found_inf = skip  # pyright: ignore[reportAttributeAccessIssue]

    def __call__(
        self, batches: Mapping[str, Batch], *, number: int | Tensor = 0, post_step_hooks: Sequence[PostStepHook] = ()
    ) -> dict[str, Tensor]:
        """Run step `number`, then the hooks; return `phase/term` scalars, detached.

        With a deferred check the host does not wait for the device, and `number` may be a tensor on it.
        """
        microbatches = {split: self.split_into_microbatches(split, batch) for split, batch in batches.items()}
        losses: dict[str, Tensor] = {}
        for phase in self.phases:
            with record_function(phase.name):
                local_terms = self.compute_gradients(phase, microbatches[phase.split])
                terms = self.distributed.all_reduce_gradients(self.parameters(phase), local_terms)
                losses |= self.update(phase, terms, number=number)
        if self.scale is not None:
            self.scale.adapt()
        for hook in post_step_hooks:
            hook.on_step_end(losses)
        return losses

    def check(self) -> None:
        """Raise NonFiniteError if a deferred check found a value that is not finite; this waits for the device."""
        if self.latch is not None:
            self.latch.check()

    def split_into_microbatches(self, split: str, batch: Batch) -> list[Microbatch]:
        """Prepare the batch of a split, convert it to the memory format, and divide it into equal microbatches."""
        batch = self.to_memory_format(self.prepare[split](batch) if split in self.prepare else batch)
        count = self.options.accumulate
        if count == 1:
            return [Microbatch(batch)]
        chunks = {name: value.chunk(count, 1 if name == "uniform" else 0) for name, value in batch.items()}
        return [Microbatch({name: parts[index] for name, parts in chunks.items()}) for index in range(count)]

    def to_memory_format(self, batch: Batch) -> Batch:
        """Return `batch` with its images in the memory format of the networks."""
        layout = torch.channels_last if self.options.channels_last else torch.contiguous_format
        return {name: x.contiguous(memory_format=layout) if x.ndim == 4 else x for name, x in batch.items()}

    def parameters(self, phase: Phase) -> list[nn.Parameter]:
        """Return the parameters that the phase updates."""
        groups = (group for optimizer in optimizers_of(phase, self.optimizers) for group in optimizer.param_groups)
        return [parameter for group in groups for parameter in group["params"]]

    def compute_gradients(self, phase: Phase, microbatches: Sequence[Microbatch]) -> dict[str, Tensor]:
        """Set the gradients of the phase's networks to the means over the microbatches; update the phase caches.

        Returns the means of the loss terms over the microbatches, detached.
        """
        for optimizer in optimizers_of(phase, self.optimizers):
            optimizer.zero_grad(set_to_none=True)
        count, sums = len(microbatches), dict[str, Tensor]()
        for microbatch in microbatches:
            output = self._loss(phase, microbatch)
            loss = output.loss if count == 1 else output.loss / count
            (loss if self.scale is None else loss * self.scale.factor).backward()
            for name, value in {**output.terms, "total": output.loss}.items():
                sums[name] = sums[name] + value.detach() if name in sums else value.detach()
            microbatch.cache |= {name: value.detach() for name, value in output.cache.items()}
        return sums if count == 1 else {name: value / count for name, value in sums.items()}

    def _loss(self, phase: Phase, microbatch: Microbatch) -> LossOutput:
        for role, net in self.nets.items():
            net.requires_grad_(role in phase.trains)
        device, dtype = next(iter(microbatch.batch.values())).device.type, self.options.autocast
        autocast = torch.autocast(device, dtype=dtype, enabled=dtype is not None)
        with autocast, use_branch_runner(self.options.branch_runner):
            return phase.loss(self.forward_nets, microbatch.batch, microbatch.cache)

    def update(self, phase: Phase, terms: dict[str, Tensor], *, number: int | Tensor) -> dict[str, Tensor]:
        """Check the phase's gradients and `terms`, and update its networks; return the terms as `phase/term`."""
        parameters = self.parameters(phase)
        if self.scale is not None:
            self.scale.unscale(parameters)
        flags = finite_flags(terms.values(), parameters)
        if self.scale is not None:
            flags = self.scale.check_overflow(flags)
        names = [*terms, "gradients"]
        if self.latch is not None:
            self.latch.record(phase.name, names, flags, number=number)
            if self.scale is not None:
                self.scale.skip.copy_(torch.maximum(self.scale.skip, self.latch.is_set))
        elif not flags.all():
            raise NonFiniteError(phase.name, nonfinite_names(names, flags), number=int(number))
        # with a latch the optimizers themselves check `found_inf`, on the device
        if self.latch is not None or self.scale is None or not self.scale.skip:
            for optimizer in optimizers_of(phase, self.optimizers):
                optimizer.step()
        return {f"{phase.name}/{name}": value for name, value in terms.items()}
