"""The training loop. It calls hooks at intervals, and knows nothing about metrics or reports."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from velogan.engine.distributed import DistributedContext
from velogan.engine.duration import Length, Span
from velogan.engine.ema import EMA, weights_and_buffers
from velogan.engine.loss_scale import LossScale
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.optimizers import load_optimizer_state, optimizer_state
from velogan.engine.schedules import Schedule, ScheduleConfig
from velogan.engine.step import PostStepHook
from velogan.objectives.base import HALVES, Objective
from velogan.observe.clock import Clock
from velogan.observe.statistics import Stats
from velogan.types import Batch

Batches = dict[str, Batch]
"""The batches of a step, by split."""

REPEATED_SIGNAL_S = 1.0
"""Seconds after a first signal in which further ones are ignored: users and schedulers send several at once."""

MAX_RESERVED_SHARE = 0.5
"""Maximum share of a run's length in minutes that is reserved for the hooks at its end."""


class Loader(Protocol):
    """Loads batches, from a position in images seen; the step may preprocess them. `len`: images per epoch."""

    def __len__(self) -> int: ...
    def batches(self, position: int) -> Generator[Batch, None, None]: ...


class Stepper(Protocol):
    """Interface of a step; `Step`, the plain implementation, documents the methods."""

    nets: Mapping[str, nn.Module]
    optimizers: Mapping[str, torch.optim.Optimizer]
    scale: LossScale | None

    def __call__(
        self, batches: Mapping[str, Batch], *, number: int = 0, post_step_hooks: Sequence[PostStepHook] = ()
    ) -> dict[str, Tensor]: ...
    def check(self) -> None: ...


@dataclass(frozen=True)
class Hook:
    """`call(images)` is called each time `every` has passed, and at the end of the run."""

    every: Span
    call: Callable[[int], object]


class Trainer:
    """Trains to the end of `length`, or until `stop_requested` is set or a hook sets `converged`.

    All randomness of a step comes from (`seed`, images seen), so a run that is stopped and resumed computes the same
    as an unbroken one. If a value is not finite, the run ends with a NonFiniteError before any hook is called.

    A length in minutes is a deadline: training ends early enough for the last hooks, if these take no longer than the
    longest earlier ones. If hooks take more than a third of the run, it may end later.

    loaders: by split; the length of the first one is an epoch
    objective: its `state` is saved; `num_uniforms` random numbers per image are added to the batch on the host
    schedule: configuration of the learning-rate schedules
    images_per_step: number of images of each domain in a step, on all ranks together
    """

    def __init__(
        self,
        step: Stepper,
        loaders: Mapping[str, Loader],
        *,
        objective: Objective,
        ema: EMA,
        schedule: ScheduleConfig,
        images_per_step: int,
        seed: int,
        distributed: DistributedContext | None = None,
    ):
        self.distributed = distributed or DistributedContext()
        self.step, self.nets = step, step.nets
        self.ema = ema
        self.loaders: Mapping[str, Loader] = loaders
        self.state, self.num_uniforms = objective.state, objective.num_uniforms
        self.images_per_step, self.seed = images_per_step, seed
        self.device = next(weight.device for net in self.nets.values() for weight in net.parameters())
        self.stats, self.clock = Stats(), Clock()
        self.schedule = Schedule(schedule, step.optimizers)
        self.stop_requested = self.converged = False
        self.images, self.progress = 0, 0.0
        self.length: Length
        self._swap_halves_at: float = getattr(objective, "swap_halves_at", math.inf)
        # seconds and stop flag of the current step, the same on all ranks
        self._seconds, self._must_stop = 0.0, False
        self._reserved_s = 0.0

    @property
    def images_per_epoch(self) -> int:
        return len(next(iter(self.loaders.values())))

    def run(self, length: Length, *, hooks: Sequence[Hook] = ()) -> None:
        """Train from the current position to the end of `length`, or until a stop is requested; call the hooks."""
        with ExitStack() as stack:
            iterators = {
                split: stack.enter_context(closing(loader.batches(self.images)))
                for split, loader in self.loaders.items()
            }
            self.set_length(length)
            self.schedule.epochs = length.schedule_epochs
            self.clock.start()
            stack.callback(self.clock.stop)
            self.clock.tick(self.images)
            try:
                self._run_steps(iterators, hooks)
            except NonFiniteError as error:
                error.images = error.number * self.images_per_step + self.images % self.images_per_step
                raise

    def _run_steps(self, iterators: Mapping[str, Iterator[Batch]], hooks: Sequence[Hook]) -> None:
        self._sync_clock_and_stop()
        counts = {hook: self._count_intervals(hook) for hook in hooks}
        is_ended = self._must_stop or (self.images > 0 and self.is_at_end)
        while not is_ended:
            self.schedule.apply(self.length.schedule_epoch(self.images, self._seconds), self._count_spans)
            self.progress = self.length.progress(self.images, self._seconds)
            self._train_step({split: next(batches) for split, batches in iterators.items()})
            self._sync_clock_and_stop()
            is_ended = self._must_stop or self.is_at_end
            due = [hook for hook in hooks if is_ended or self._count_intervals(hook) > counts[hook]]
            if due or is_ended:
                self._call_hooks(due)
                counts |= {hook: self._count_intervals(hook) for hook in due}
            if self.converged and not is_ended:
                is_ended = True
                self._call_hooks([hook for hook in hooks if hook not in due])

    @property
    def is_at_end(self) -> bool:
        """Whether the run has reached its length; a length in minutes is reduced by the time for the last hooks."""
        return self.length.progress(self.images, self._seconds) >= 1

    def set_length(self, length: Length) -> None:
        """Set the length of the run; if it is in minutes, reserve the time that the last hooks are expected to take."""
        self.length = replace(length, reserved=max(length.reserved, self._reserved_s))

    def _sync_clock_and_stop(self) -> None:
        # `stop_requested` itself is not overwritten: a signal during the exchange sets it for the next one
        self._seconds, self._must_stop = self.distributed.sync_clock_and_stop(
            seconds=self.clock.seconds, stop_requested=self.stop_requested
        )

    def _count_spans(self, span: Span) -> float:
        seconds, length = self._seconds, self.length
        return span.count(
            images=self.images,
            seconds=seconds,
            progress=length.progress(self.images, seconds),
            images_per_epoch=length.images_per_epoch,
        )

    def _count_intervals(self, hook: Hook) -> int:
        return math.floor(self._count_spans(hook.every))

    def _call_hooks(self, hooks: Sequence[Hook]) -> None:
        """Call `hooks` after `Step.check`, since a checkpoint must not hold weights that are not finite."""
        self.step.check()
        started = self.clock.seconds
        with self.clock.overhead():
            for hook in hooks:
                hook.call(self.images)
        self.converged, elapsed = self.distributed.broadcast((self.converged, self.clock.seconds - started))
        self._seconds += elapsed
        if self.length.seconds is not None:
            self._reserved_s = max(self._reserved_s, min(elapsed, MAX_RESERVED_SHARE * self.length.seconds))
            self.set_length(self.length)

    def _train_step(self, batches: Batches) -> None:
        number = self.images // self.images_per_step
        batches = self._prepare_batches(batches)
        images = self.images + self.images_per_step
        hooks: list[PostStepHook] = [self.stats]
        if (number + 1) % EMA.EVERY == 0:
            self.ema.set_decay(images)
            hooks.append(self.ema)
        self.step(batches, number=number, post_step_hooks=hooks)
        self.images = images

    def _prepare_batches(self, batches: Batches) -> Batches:
        """Seed the step; return its batches with uniform random numbers; after `swap_halves_at`, swap `HALVES`."""
        if self.progress >= self._swap_halves_at and HALVES[0] in batches:  # with phase workers, batches are empty here
            first, second = HALVES
            batches = {first: batches[second], second: batches[first]}
        torch.manual_seed(step_seed(self.seed, self.images))
        batches = {split: batch | {"uniform": self._draw(split, len(batch["A"]))} for split, batch in batches.items()}
        if not self.distributed.is_main_process:
            # numbers that the networks draw themselves, as for dropout, differ between ranks
            torch.manual_seed(step_seed(self.seed, self.images + self.distributed.rank))
        return batches

    def _draw(self, split: str, images: int) -> Tensor:
        """Return `(num_uniforms, images)` uniform numbers in [0, 1) for this rank, as one process would draw them."""
        uniform = torch.rand(self.num_uniforms[split], images * self.distributed.world_size)
        uniform = uniform.narrow(1, self.distributed.rank * images, images).contiguous()
        # from other memory the copy to the device would wait for earlier steps
        return uniform.pin_memory() if self.device.type == "cuda" else uniform

    def clock_state(self) -> dict[str, Any]:
        """Return the clock's state; at the end of a run in minutes, time reserved for hooks counts as spent."""
        state, total = self.clock.state_dict(), self.length.seconds
        if total is not None and self.length.progress(self.images, state["seconds"]) >= 1:
            state["seconds"] = max(state["seconds"], total)
        return state

    def state_dict(self) -> dict[str, Any]:
        """Return all state but networks and averages. All ranks must call it: rank 0 gathers their objectives."""
        objective, *others = self.distributed.gather_to_main(copy_to_cpu(self.state.state_dict())) or [{}]
        return {
            "images": self.images,
            "optimizers": {name: optimizer_state(optimizer) for name, optimizer in self.step.optimizers.items()},
            "objective": objective,
            "ema": self.ema.state_dict(),
            "reserved": self._reserved_s,
            **({} if self.step.scale is None else {"scale": self.step.scale.state_dict()}),
            **({"others": others} if others else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the `state` that `state_dict` returned; networks and averages are loaded separately.

        Each rank loads its own state of the objective; a rank that the saved run lacked loads another rank's state.
        """
        self.images = state["images"]
        for name, optimizer in self.step.optimizers.items():
            load_optimizer_state(optimizer, state["optimizers"][name])
        states = [state["objective"], *state.get("others", ())]
        self.state.load_state_dict(states[self.distributed.rank % len(states)])
        self.ema.load_state_dict(state["ema"])
        self._reserved_s = state["reserved"]
        if self.step.scale is not None and "scale" in state:  # the precision may have changed
            self.step.scale.load_state_dict(state["scale"])

    def broadcast_initial_state(self, state: Mapping[str, Any] | None) -> None:
        """Broadcast rank 0's weights and averages, and the `state` that it has loaded (None: a new run)."""
        if self.distributed.is_distributed:
            self.distributed.broadcast_tensors([*weights_and_buffers(self.nets), *self.ema.state_tensors()])
            state = self.distributed.broadcast(state)
            if state is not None and not self.distributed.is_main_process:
                self.load_state_dict(state)


def copy_to_cpu(state: Any) -> Any:
    """Return a copy of nested dicts and lists with all tensors on the CPU."""
    return tree_map_only(Tensor, lambda tensor: tensor.detach().to("cpu", copy=True), state)


def step_seed(seed: int, images: int) -> int:
    """Return a well-mixed 63-bit seed for the step at `images` seen (SplitMix64, Steele et al. 2014, figure 17)."""
    z = ((seed << 40) + images + 1) * 0x9E3779B97F4A7C15 % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return (z ^ (z >> 31)) >> 1


@contextmanager
def stop_on_signal(trainer: Trainer) -> Iterator[None]:
    """Stop training after the current step on SIGINT, SIGTERM or SIGHUP; interrupt it at once on a later signal."""
    requested_at = 0.0

    def request_stop(signum: int, frame: Any) -> None:
        nonlocal requested_at
        if not trainer.stop_requested:
            trainer.stop_requested, requested_at = True, time.monotonic()
            if trainer.distributed.is_main_process:
                with suppress(OSError, ValueError):  # a signal handler must not use a stream that may be in use
                    os.write(sys.stderr.fileno(), b"stopping: writing a checkpoint (Ctrl-C again: stop without it)\n")
        elif time.monotonic() - requested_at > REPEATED_SIGNAL_S:
            signal.signal(signum, previous[signum])
            signal.raise_signal(signum)

    previous = {}
    try:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:  # as nohup sets it
                previous[signum] = signal.signal(signum, request_stop)
    except ValueError:  # not the main thread: the caller handles signals
        pass
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
