"""The one training loop. It knows hooks by interval, and nothing about metrics, reports or search."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from velogan.engine.duration import Length, Span
from velogan.engine.ema import EMA
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.optimizers import Schedule, load_optimizer_state, optimizer_state
from velogan.engine.step import After
from velogan.observe.clock import Clock
from velogan.observe.stats import EpochLoss, Stats
from velogan.types import Batch

MOST_SKIPPED = 100
"""Broken steps in a row that are skipped; the next one stops the run all the same."""


class Loader(Protocol):
    """Batches, or what the step makes them of, as a function of the images seen; `len` is the images of an epoch."""

    def __len__(self) -> int: ...
    def batches(self, position: int) -> Generator[Batch, None, None]: ...


class Stepper(Protocol):
    """Anything that runs a step: the plain one or a faster one. `Step` says how each method behaves."""

    optimizers: Mapping[str, torch.optim.Optimizer]

    def __call__(
        self, batches: Mapping[str, Batch], *, number: int = 0, after: Sequence[After] = ()
    ) -> dict[str, Tensor]: ...
    def check(self) -> None: ...
    def origin(self, error: NonFiniteError, batches: Mapping[str, Batch]) -> str: ...


@dataclass(frozen=True)
class Hook:
    """`call(images)` each time `every` has passed, and at the end of the run; the clock stands still meanwhile."""

    every: Span
    call: Callable[[int], None]


class Trainer:
    """Runs steps to the end of a length, or until `stopping` is set.

    All randomness of a step comes from (`seed`, images seen), so a run that is stopped and continued computes
    what an unbroken one computes. `state` is the objective's; `batch_size` is in images. `draws` uniform numbers for
    each image join the loader's batch on the host.

    `on_nonfinite`: a step that gives no finite number raises a NonFiniteError ("stop"), or the rest of it is left out
    ("skip") and `skipped` rises; after `MOST_SKIPPED` in a row the next raises too.
    """

    def __init__(
        self,
        step: Stepper,
        loader: Loader,
        *,
        nets: Mapping[str, nn.Module],
        ema: EMA,
        state: nn.Module,
        draws: int,
        batch_size: int,
        seed: int,
        device: torch.device,
        on_nonfinite: Literal["stop", "skip"] = "stop",
    ):
        self.step, self.loader, self.nets, self.ema, self.state = step, loader, nets, ema, state
        self.draws, self.batch_size, self.seed, self.device = draws, batch_size, seed, device
        self.on_nonfinite = on_nonfinite
        self.images = self.skipped = self._skipped_in_row = 0
        self.stats, self.epoch_loss, self.clock = Stats(), EpochLoss(device), Clock()
        self.stopping = False

    def run(self, length: Length, *, schedule: Schedule, hooks: Sequence[Hook] = ()) -> None:
        """Trains from where it stands to the end of `length`."""
        batches = self.loader.batches(self.images)
        self.clock.start()
        self.clock.tick(self.images)
        counts = [self._passed(hook, length) for hook in hooks]
        try:
            ended = self.done(length)
            while not ended:
                self._advance(schedule, length)
                self._one_step(next(batches))
                ended = self.done(length)  # asked once a step: whoever ends the run lets the hooks know
                counts = self._call_due(hooks, counts, length, ended=ended)
        finally:
            self.clock.stop()
            batches.close()

    def done(self, length: Length) -> bool:
        """Whether the run is at its end, or asked to stop."""
        return self.stopping or length.progress(self.images, self.clock.seconds) >= 1

    def _passed(self, hook: Hook, length: Length) -> int:
        seconds = self.clock.seconds
        progress = length.progress(self.images, seconds)
        return hook.every.passed(images=self.images, seconds=seconds, progress=progress, epoch=length.epoch)

    def _call_due(self, hooks: Sequence[Hook], before: list[int], length: Length, *, ended: bool) -> list[int]:
        counts = [self._passed(hook, length) for hook in hooks]
        due = [hook for hook, count, earlier in zip(hooks, counts, before) if ended or count > earlier]
        if due or ended:
            self._check()  # before any hook: a checkpoint must not keep what is broken
        for hook in due:
            with self.clock.paused():
                hook.call(self.images)
        return counts

    def _check(self) -> None:
        try:
            self.step.check()
        except NonFiniteError as error:
            position = error.number * self.batch_size
            batches = self.loader.batches(position)
            self._explain(error, self._with_draws(next(batches), position), position)
            batches.close()
            raise

    def _explain(self, error: NonFiniteError, batch: Batch, position: int) -> None:
        error.images = position
        error.origin = self.step.origin(error, {"train": batch})

    def _with_draws(self, batch: Batch, position: int) -> Batch:
        torch.manual_seed(step_seed(self.seed, position))
        pinned = self.device.type == "cuda"  # else copying it there would wait for the steps before
        return batch | {"uniform": torch.rand(self.draws, len(batch["A"]), pin_memory=pinned)}

    def _one_step(self, batch: Batch) -> None:
        batch = self._with_draws(batch, self.images)
        number, images = self.images // self.batch_size, self.images + self.batch_size
        after: list[After] = [self.stats, self.epoch_loss]
        if averaging := (number + 1) % EMA.EVERY == 0:
            self.ema.weigh(images)
            after.append(self.ema)
        try:
            self.step({"train": batch}, number=number, after=after)
            self._skipped_in_row = 0
        except NonFiniteError as error:
            if self.on_nonfinite == "stop" or self._skipped_in_row == MOST_SKIPPED:
                self._explain(error, batch, self.images)
                raise
            self.skipped, self._skipped_in_row = self.skipped + 1, self._skipped_in_row + 1
            if averaging:
                self.ema.follow({})
        self.images = images

    def _advance(self, schedule: Schedule, length: Length) -> None:
        tick = length.tick(self.images, self.clock.seconds)
        schedule.epoch = min(schedule.epoch, tick)  # a run that was made longer is earlier in its schedule
        while schedule.epoch < tick:
            schedule.finish_epoch(self.epoch_loss.take())
        schedule.apply(self.step.optimizers)

    def state_dict(self) -> dict[str, Any]:
        """What training computed besides the networks and their averages."""
        return {
            "images": self.images,
            "optimizers": {name: optimizer_state(o) for name, o in self.step.optimizers.items()},
            "objective": self.state.state_dict(),
            "ema": self.ema.state_dict(),
            "losses": self.epoch_loss.state_dict(),
            "skipped": [self.skipped, self._skipped_in_row],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state_dict`; networks and averages are loaded apart."""
        self.images = state["images"]
        for name, optimizer in self.step.optimizers.items():
            load_optimizer_state(optimizer, state["optimizers"][name])
        self.state.load_state_dict(state["objective"])
        self.ema.load_state_dict(state["ema"])
        total, steps = state["losses"]
        self.epoch_loss.load_state_dict([float(total or 0.0), steps])  # the first version had tensors, or None
        self.skipped, self._skipped_in_row = state.get("skipped", (0, 0))  # the first version had none


def step_seed(seed: int, images: int) -> int:
    """A well-mixed 63-bit seed for the step at `images` seen (SplitMix64, Steele et al. 2014, figure 17)."""
    z = ((seed << 40) + images + 1) * 0x9E3779B97F4A7C15 % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return (z ^ (z >> 31)) >> 1


@contextmanager
def stop_on_signal(trainer: Trainer) -> Iterator[None]:
    """SIGINT and SIGTERM let the current step finish; a second one is the ordinary interruption."""

    def ask(number: int, frame: Any) -> None:
        trainer.stopping = True
        signal.signal(number, before[number])

    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, ask)
    except ValueError:  # not the main thread: the caller handles signals
        pass
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
