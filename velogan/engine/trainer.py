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

from velogan.engine.allowance import Allowance
from velogan.engine.distributed import DistributedContext
from velogan.engine.duration import Length, Span
from velogan.engine.ema import EMA
from velogan.engine.loss_scale import LossScale
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.optimizers import load_optimizer_state, optimizer_state
from velogan.engine.schedules import Schedule, ScheduleConfig
from velogan.engine.step import After
from velogan.objectives.base import HALVES
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

    optimizers: Mapping[str, torch.optim.Optimizer]
    scale: LossScale | None

    def __call__(
        self, batches: Mapping[str, Batch], *, number: int = 0, after: Sequence[After] = ()
    ) -> dict[str, Tensor]: ...
    def check(self) -> None: ...


@dataclass(frozen=True)
class Hook:
    """`call(images)` is called each time `every` has passed, and at the end of the run.

    The clock pauses meanwhile, but in a run in minutes, whose length counts all. There a `dear` call is put off for as
    long as the run cannot afford it (`Allowance`); `seconds` is a guess at what it takes.
    """

    every: Span
    call: Callable[[int], object]
    dear: bool = False
    seconds: float = 0.0


class Trainer:
    """Runs steps to the end of a length, or until `stopping` is set, or at once when a hook sets `enough`.

    All randomness of a step comes from (`seed`, images seen), so a run that is stopped and continued computes
    what an unbroken one computes. `loaders` are by split; the length of the first one is an epoch. `state` is the
    objective's; `batch_size` is in images of a step, on all `ranks` together. `draws` is, by split, how many uniform
    numbers for each image are added to the batch on the host. `schedule` sets the learning rates.

    A step with a number that is not finite ends the run with a NonFiniteError before any hook is called.
    """

    def __init__(
        self,
        step: Stepper,
        loaders: Mapping[str, Loader],
        *,
        nets: Mapping[str, nn.Module],
        ema: EMA,
        state: nn.Module,
        draws: Mapping[str, int],
        schedule: ScheduleConfig,
        batch_size: int,
        seed: int,
        device: torch.device,
        ranks: DistributedContext | None = None,
        swaps_at: float = math.inf,
    ):
        self.ranks = ranks or DistributedContext()
        self.step, self.nets, self.ema, self.state = step, nets, ema, state
        self.loaders: Mapping[str, Loader] = loaders
        self.draws, self.batch_size, self.seed, self.device = draws, batch_size, seed, device
        self.images = 0
        self.stats, self.clock = Stats(), Clock()
        self.schedule = Schedule(schedule, step.optimizers)
        self.stopping = self.enough = self.put_off = False
        self.progress = 0.0
        self.length: Length
        self._allowance: Allowance | None = None
        self._swaps_at = swaps_at
        self._seconds, self._stops = 0.0, False

    @property
    def epoch(self) -> int:
        """Images of an epoch."""
        return len(next(iter(self.loaders.values())))

    def run(self, length: Length, *, hooks: Sequence[Hook] = ()) -> None:
        """Trains from the current position to the end of `length`."""
        batches = self._open(self.images)
        self.schedule.epochs = length.ticks
        self.clock.start()
        self.clock.tick(self.images)
        self._allow(length, hooks)
        self._agree()
        counts = self._counts(hooks)
        try:
            ended = self._stops or (self.images > 0 and self.done)
            while not ended:
                self._advance()
                self._one_step(_next(batches))
                self._agree()
                ended = self._stops or self.done  # asked only once a step: at the end every hook is called
                counts = self._call_due(hooks, counts, ended=ended)
                ended = ended or self.enough
        except NonFiniteError as error:
            error.images = error.number * self.batch_size + self.images % self.batch_size
            raise
        finally:
            self.clock.stop()
            _close(batches)

    @property
    def done(self) -> bool:
        """Whether the training is at its end."""
        return self.length.progress(self.images, self._seconds) >= 1

    def _allow(self, length: Length, hooks: Sequence[Hook]) -> None:
        """Keeps time for the last calls of a run in minutes, which follow its training."""
        self.length, self._allowance = length, None
        if length.seconds is not None and (dear := [hook.seconds for hook in hooks if hook.dear]):
            self._allowance = Allowance(length.seconds, self.ranks.broadcast(dear))
            self.length = replace(length, kept=self._allowance.kept)

    def _agree(self) -> None:
        """The time and the wish to stop that count until the next step, on all ranks."""
        # not `stopping` itself: a signal during the exchange sets it, for the next one
        self._seconds, self._stops = self.ranks.sync_clock_and_stop(seconds=self.clock.seconds, stopping=self.stopping)

    def _passed(self, span: Span) -> float:
        seconds, length = self._seconds, self.length
        progress = length.progress(self.images, seconds)
        return span.passed(images=self.images, seconds=seconds, progress=progress, epoch=length.epoch)

    def _counts(self, hooks: Sequence[Hook]) -> list[int]:
        return [math.floor(self._passed(hook.every)) for hook in hooks]

    def _call_due(self, hooks: Sequence[Hook], before: list[int], *, ended: bool) -> list[int]:
        """Calls what is due; gives the counts up to which all has been called."""
        counts, due, kind = list(before), list[Hook](), 0
        took: dict[int, float] = {}
        for place, (hook, count) in enumerate(zip(hooks, self._counts(hooks))):
            kind += hook.dear
            if not ended and count <= before[place]:
                continue
            if not ended and hook.dear and not self._affords(kind - 1):
                self.put_off = True
                continue
            if not due:
                self.step.check()  # before any hook: a checkpoint must not hold broken weights
            due.append(hook)
            counts[place] = count
            seconds = self._call(hook)
            took |= {kind - 1: seconds} if hook.dear else {}
        if due:
            self.enough, took = self.ranks.broadcast((self.enough, took))
            self._took({} if ended else took)
        elif ended:
            self.step.check()
        for hook in hooks if self.enough else ():
            if hook not in due:
                self._call(hook)
        return counts

    def _call(self, hook: Hook) -> float:
        """Seconds that the call took of the run."""
        began = self.clock.seconds
        with self.clock.aside(counts=self.length.seconds is not None):
            hook.call(self.images)
        return self.clock.seconds - began

    def _affords(self, kind: int) -> bool:
        progress = self.length.progress(self.images, self._seconds)
        return self._allowance is None or self._allowance.affords(kind, progress=progress)

    def _took(self, took: Mapping[int, float]) -> None:
        if self._allowance is None:
            return
        for kind, seconds in took.items():
            self._allowance.took(kind, seconds)
        self.length = replace(self.length, kept=self._allowance.kept)

    def _open(self, position: int) -> Opened:
        return {split: loader.batches(position) for split, loader in self.loaders.items()}

    def _with_draws(self, batches: Batches, position: int) -> Batches:
        """The batches as the step gets them: with random numbers, and with the halves swapped once that is due."""
        if self.progress >= self._swaps_at:
            one, other = HALVES
            batches = {one: batches[other], other: batches[one]}
        torch.manual_seed(step_seed(self.seed, position))
        drawn = {split: batch | {"uniform": self._draw(split, len(batch["A"]))} for split, batch in batches.items()}
        if (
            not self.ranks.is_main_process
        ):  # what the networks draw themselves, as for dropout, is another number on each rank
            torch.manual_seed(step_seed(self.seed, position + self.ranks.rank))
        return drawn

    def _draw(self, split: str, images: int) -> Tensor:
        """Numbers for this rank's `images`, which are some of those that one rank would draw for all."""
        pinned = self.device.type == "cuda"  # else the copy to the device would wait for earlier steps
        uniform = torch.rand(self.draws[split], images * self.ranks.world, pin_memory=pinned)
        if not self.ranks.is_distributed:
            return uniform
        mine = uniform.narrow(1, self.ranks.rank * images, images).contiguous()
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
        self.progress = max(self.progress, self.length.progress(self.images, self._seconds))  # more may be kept later

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Each one once, by the first phase that has it."""
        found: dict[str, torch.optim.Optimizer] = {}
        for name, optimizer in self.step.optimizers.items():
            if all(optimizer is not other for other in found.values()):
                found[name] = optimizer
        return found

    def clock_state(self) -> dict[str, Any]:
        """The clock's, for a checkpoint; at the end of the training what was kept for the end counts as spent."""
        state, whole = self.clock.state_dict(), self.length.seconds
        if whole is not None and self.length.progress(self.images, state["seconds"]) >= 1:
            state["seconds"] = max(state["seconds"], whole)
        return state

    def state_dict(self) -> dict[str, Any]:
        """What training computed besides the networks and their averages; all ranks must ask, the first gets all."""
        objective, *others = self.ranks.gather_first(on_cpu(self.state.state_dict())) or [{}]
        return {
            "images": self.images,
            "optimizers": {name: optimizer_state(optimizer) for name, optimizer in self._optimizers().items()},
            "objective": objective,
            "ema": self.ema.state_dict(),
            **({} if self.step.scale is None else {"scale": self.step.scale.state_dict()}),
            **({"others": others} if others else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state_dict`; networks and averages are loaded separately.

        Each rank takes its own state of the objective. Ranks that were not there before take those of the others.
        """
        self.images = state["images"]
        for name, optimizer in self._optimizers().items():
            load_optimizer_state(optimizer, state["optimizers"][name])
        states = [state["objective"], *state.get("others", ())]
        self.state.load_state_dict(states[self.ranks.rank % len(states)])
        self.ema.load_state_dict(state["ema"])
        if self.step.scale is not None and "scale" in state:  # it may have computed in another precision before
            self.step.scale.load_state_dict(state["scale"])

    def share(self, state: Mapping[str, Any] | None) -> None:
        """Gives all ranks the first one's weights, and the `state` that it continues from, if there is one."""
        if self.ranks.is_distributed:
            averages = list(self.ema.tensors())
            weights = [value for net in self.nets.values() for value in (*net.parameters(), *net.buffers())]
            self.ranks.broadcast_tensors([*weights, *averages])
            state = self.ranks.broadcast(state)
            if state is not None and not self.ranks.is_main_process:
                self.load_state_dict(state)


def on_cpu(state: Any) -> Any:
    """A copy of nested dicts and lists with all tensors on the CPU."""
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
    """A well-mixed 63-bit seed for the step at `images` seen (SplitMix64, Steele et al. 2014, figure 17)."""
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
