"""The only training loop. It calls hooks at intervals, and knows nothing about metrics or reports."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from velogan.engine.distributed import DistributedContext
from velogan.engine.duration import Length, Span
from velogan.engine.ema import EMA
from velogan.engine.loss_scale import LossScale
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.optimizers import load_optimizer_state, optimizer_state
from velogan.engine.schedules import Schedule, ScheduleConfig
from velogan.engine.step import After
from velogan.objectives.base import HALVES, Objective
from velogan.observe.clock import Clock
from velogan.observe.statistics import Stats
from velogan.types import Batch

Batches = dict[str, Batch]
"""The batches of a step, by split."""

Opened = dict[str, Generator[Batch, None, None]]
"""Running loaders, by split."""


class Loader(Protocol):
    """Batches, ready or for the step to prepare, from a position in images seen; `len` is the images of an epoch."""

    def __len__(self) -> int: ...
    def batches(self, position: int) -> Generator[Batch, None, None]: ...


class Stepper(Protocol):
    """Runs a step: the plain one or a faster one. `Step` documents each method."""

    nets: Mapping[str, nn.Module]
    optimizers: Mapping[str, torch.optim.Optimizer]
    scale: LossScale | None

    def __call__(
        self, batches: Mapping[str, Batch], *, number: int = 0, after: Sequence[After] = ()
    ) -> dict[str, Tensor]: ...
    def check(self) -> None: ...


MAX_RESERVED = 0.5
"""At most this share of a run in minutes is reserved for the hooks at its end."""


@dataclass(frozen=True)
class Hook:
    """`call(images)` is called each time `every` has passed, and at the end of the run."""

    every: Span
    call: Callable[[int], object]


class Trainer:
    """Runs steps to the end of a length, or until `stopping` is set, or at once when a hook sets `enough`.

    All randomness of a step comes from (`seed`, images seen), so a run that is stopped and continued computes
    what an unbroken one computes. `loaders` are by split; the length of the first one is an epoch. `state` is the
    objective's; `batch_size` is in images of a step, on all `ranks` together. `draws` is, by split, how many uniform
    numbers for each image are added to the batch on the host. `schedule` sets the learning rates.

    A step with a number that is not finite ends the run with a NonFiniteError before any hook is called.

    A length in minutes is a deadline for all: training ends earlier by the time that the longest round of hooks took,
    so that the hooks at the end are done in time. A run so short that one round takes more than a third of it may end
    later.
    """

    def __init__(
        self,
        step: Stepper,
        loaders: Mapping[str, Loader],
        *,
        objective: Objective,
        ema: EMA,
        schedule: ScheduleConfig,
        batch_size: int,
        seed: int,
        distributed: DistributedContext | None = None,
    ):
        self.distributed = distributed or DistributedContext()
        self.step, self.nets, self.ema = step, step.nets, ema
        self.loaders: Mapping[str, Loader] = loaders
        self.state, self.draws = objective.state, objective.draws
        self.batch_size, self.seed = batch_size, seed
        self.device = next(weight.device for net in self.nets.values() for weight in net.parameters())
        self.images = 0
        self.stats, self.clock = Stats(), Clock()
        self.schedule = Schedule(schedule, step.optimizers)
        self.stopping = self.enough = False
        self.progress = 0.0
        self.length: Length
        self._swap_halves_at: float = getattr(objective, "swap_halves_at", math.inf)
        self._seconds, self._reserved, self._stops = 0.0, 0.0, False

    @property
    def epoch(self) -> int:
        """Images of an epoch."""
        return len(next(iter(self.loaders.values())))

    def run(self, length: Length, *, hooks: Sequence[Hook] = ()) -> None:
        """Train from the current position to the end of `length`."""
        batches = self._open(self.images)
        self.plan(length)
        self.schedule.epochs = length.ticks
        self.clock.start()
        self.clock.tick(self.images)
        self._agree()
        counts = {hook: self._count(hook) for hook in hooks}
        try:
            ended = self._stops or (self.images > 0 and self.done)
            while not ended:
                self._advance()
                self._one_step(_next(batches))
                self._agree()
                ended = self._stops or self.done
                due = [hook for hook in hooks if ended or self._count(hook) > counts[hook]]
                if due or ended:
                    self._call(due)
                    counts |= {hook: self._count(hook) for hook in due}
                if self.enough and not ended:
                    ended = True
                    self._call([hook for hook in hooks if hook not in due])
        except NonFiniteError as error:
            error.images = error.number * self.batch_size + self.images % self.batch_size
            raise
        finally:
            self.clock.stop()
            _close(batches)

    @property
    def done(self) -> bool:
        """Whether the training is at its end; the time that the last hooks need may be left."""
        return self.length.progress(self.images, self._seconds) >= 1

    def plan(self, length: Length) -> None:
        """Set the length of the run; one in minutes reserves the time that the last hooks need."""
        self.length = replace(length, reserved=max(length.reserved, self._reserved))

    def _agree(self) -> None:
        """Synchronise the clock and the stop flag for the next step on all ranks."""
        # not `stopping` itself: a signal during the exchange sets it, for the next one
        self._seconds, self._stops = self.distributed.sync_clock_and_stop(
            seconds=self.clock.seconds, stopping=self.stopping
        )

    def _passed(self, span: Span) -> float:
        seconds, length = self._seconds, self.length
        progress = length.progress(self.images, seconds)
        return span.passed(images=self.images, seconds=seconds, progress=progress, epoch=length.epoch)

    def _count(self, hook: Hook) -> int:
        """Count how often the interval of `hook` has passed."""
        return math.floor(self._passed(hook.every))

    def _call(self, hooks: Sequence[Hook]) -> None:
        """Call `hooks`, if all numbers so far are finite: a checkpoint must not hold broken weights."""
        self.step.check()
        started = self.clock.seconds
        with self.clock.overhead():
            for hook in hooks:
                hook.call(self.images)
        self.enough, took = self.distributed.broadcast((self.enough, self.clock.seconds - started))
        self._seconds += took
        if self.length.seconds is not None:
            self._reserved = max(self._reserved, min(took, MAX_RESERVED * self.length.seconds))
            self.plan(self.length)

    def _open(self, position: int) -> Opened:
        return {split: loader.batches(position) for split, loader in self.loaders.items()}

    def _with_draws(self, batches: Batches, position: int) -> Batches:
        """Return the batches with uniform random numbers, and with the halves swapped once that is due."""
        if self.progress >= self._swap_halves_at:
            one, other = HALVES
            batches = {one: batches[other], other: batches[one]}
        torch.manual_seed(step_seed(self.seed, position))
        drawn = {split: batch | {"uniform": self._draw(split, len(batch["A"]))} for split, batch in batches.items()}
        if (
            not self.distributed.is_main_process
        ):  # what the networks draw themselves, as for dropout, is another number on each rank
            torch.manual_seed(step_seed(self.seed, position + self.distributed.rank))
        return drawn

    def _draw(self, split: str, images: int) -> Tensor:
        """Draw numbers for this rank's `images`: its part of those that a single process would draw for all."""
        pinned = self.device.type == "cuda"  # else the copy to the device would wait for earlier steps
        uniform = torch.rand(self.draws[split], images * self.distributed.world, pin_memory=pinned)
        if not self.distributed.is_distributed:
            return uniform
        mine = uniform.narrow(1, self.distributed.rank * images, images).contiguous()
        return mine.pin_memory() if pinned else mine

    def _one_step(self, batches: Batches) -> None:
        batches = self._with_draws(batches, self.images)
        number, images = self.images // self.batch_size, self.images + self.batch_size
        after: list[After] = [self.stats]
        if (number + 1) % EMA.EVERY == 0:
            self.ema.weigh(images)
            after.append(self.ema)
        self.step(batches, number=number, after=after)
        self.images = images

    def _advance(self) -> None:
        self.schedule.apply(self.length.tick(self.images, self._seconds), self._passed)
        self.progress = self.length.progress(self.images, self._seconds)

    def clock_state(self) -> dict[str, Any]:
        """Return the clock's state; at the end of a run in minutes the time reserved for hooks counts as spent."""
        state, whole = self.clock.state_dict(), self.length.seconds
        if whole is not None and self.length.progress(self.images, state["seconds"]) >= 1:
            state["seconds"] = max(state["seconds"], whole)
        return state

    def state_dict(self) -> dict[str, Any]:
        """Return all state but networks and averages. All ranks must call it; rank 0 gets the states of all."""
        objective, *others = self.distributed.gather_first(on_cpu(self.state.state_dict())) or [{}]
        return {
            "images": self.images,
            "optimizers": {name: optimizer_state(optimizer) for name, optimizer in self.step.optimizers.items()},
            "objective": objective,
            "ema": self.ema.state_dict(),
            "reserved": self._reserved,
            **({} if self.step.scale is None else {"scale": self.step.scale.state_dict()}),
            **({"others": others} if others else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from `state_dict`; networks and averages are loaded separately.

        Each rank takes its own state of the objective. Ranks that were not there before take those of the others.
        """
        self.images = state["images"]
        for name, optimizer in self.step.optimizers.items():
            load_optimizer_state(optimizer, state["optimizers"][name])
        states = [state["objective"], *state.get("others", ())]
        self.state.load_state_dict(states[self.distributed.rank % len(states)])
        self.ema.load_state_dict(state["ema"])
        self._reserved = state["reserved"]
        if self.step.scale is not None and "scale" in state:  # it may have computed in another precision before
            self.step.scale.load_state_dict(state["scale"])

    def share(self, state: Mapping[str, Any] | None) -> None:
        """Broadcast rank 0's weights and averages, and the `state` from which it resumes, if there is one."""
        if self.distributed.is_distributed:
            averages = list(self.ema.tensors())
            weights = [value for net in self.nets.values() for value in (*net.parameters(), *net.buffers())]
            self.distributed.broadcast_tensors([*weights, *averages])
            state = self.distributed.broadcast(state)
            if state is not None and not self.distributed.is_main_process:
                self.load_state_dict(state)


def on_cpu(state: Any) -> Any:
    """Return a copy of nested dicts and lists with all tensors on the CPU."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, Mapping):
        return {name: on_cpu(value) for name, value in state.items()}
    return [on_cpu(value) for value in state] if isinstance(state, (list, tuple)) else state


def _next(opened: Opened) -> Batches:
    return {split: next(batches) for split, batches in opened.items()}


def _close(opened: Opened) -> None:
    for batches in opened.values():
        batches.close()


def step_seed(seed: int, images: int) -> int:
    """Return a well-mixed 63-bit seed for the step at `images` seen (SplitMix64, Steele et al. 2014, figure 17)."""
    z = ((seed << 40) + images + 1) * 0x9E3779B97F4A7C15 % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return (z ^ (z >> 31)) >> 1


@contextmanager
def stop_on_signal(trainer: Trainer) -> Iterator[None]:
    """On SIGINT or SIGTERM the current step finishes, then training stops; a second signal interrupts at once."""

    def request_stop(number: int, frame: Any) -> None:
        trainer.stopping = True
        signal.signal(number, before[number])

    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, request_stop)
    except ValueError:  # not the main thread: the caller handles signals
        pass
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
