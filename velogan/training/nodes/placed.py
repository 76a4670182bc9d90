"""The step of the process that keeps the run folder: it notes what nodes compute, and asks them to catch up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence

import torch
from torch import Tensor

from velogan.engine.duration import Span
from velogan.engine.loss_scale import LossScale
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.optimizers import load_optimizer_state
from velogan.engine.step import After
from velogan.engine.trainer import Trainer, on_cpu
from velogan.training.nodes.node import Given, Module, Report, Task, fill, weights_of
from velogan.types import Batch

Ask = Callable[[Given, Task], Mapping[str, Report]]
"""Gives all nodes a task and waits for their reports, by module."""

Say = Callable[[str], None]
"""Tells the user a line."""

PIECE_S = 2.0
"""About how many seconds nodes compute before they are heard again: so late is a wish to stop."""


class Placed:
    """A step that nodes compute: the `trainer`'s own, whose networks and optimizers it keeps up to date.

    Networks are exchanged each time `every` has passed, in images or epochs. `say` tells of nodes that began again.
    """

    def __init__(self, trainer: Trainer, modules: Sequence[Module], ask: Ask, *, every: Span, say: Say) -> None:
        self._trainer, self._modules, self._ask, self._say = trainer, modules, ask, say
        self._every = every
        self.optimizers = trainer.step.optimizers
        self.scale: LossScale | None = None
        self._pending: list[Sequence[After]] = []
        self._piece, self._shown, self._skipped = 1, True, trainer.skipped
        self._broken: tuple[str, Sequence[str], int, str] | None = None
        self._processes: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        """Of the processor, by module, in its present process."""
        self._given = Given(
            trainer.images,
            weights_of(trainer.nets),
            on_cpu(trainer.state.state_dict()),
            averages=weights_of(trainer.ema.nets),
            trainer=on_cpu(trainer.state_dict()),
        )

    def __call__(
        self, batches: Mapping[str, Batch], *, number: int = 0, after: Sequence[After] = ()
    ) -> dict[str, Tensor]:
        """Notes a step; `batches` are empty. Its losses reach `after` when the nodes are heard."""
        self._pending.append(after)
        before, until = self._trainer.images, self._trainer.images + self._trainer.batch_size
        if self._exchanges(until) > self._exchanges(before):
            self._catch_up(until, exchange=True)
        elif len(self._pending) >= self._piece:
            self._catch_up(until)
        return {}

    def _exchanges(self, images: int) -> int:
        return math.floor(self._every.passed(images=images, seconds=0, progress=0, epoch=self._trainer.epoch))

    def check(self) -> None:
        """Waits for the nodes, and takes what they trained. NonFiniteError where one found such numbers."""
        if self._pending or not self._shown:
            self._catch_up(self._trainer.images, shows=True)
        if self._broken is not None:
            phase, found, number, _ = self._broken
            raise NonFiniteError(phase, found, number=number)

    def origin(self, error: NonFiniteError, batches: Mapping[str, Batch]) -> str:
        """Where its node says that it began."""
        return "" if self._broken is None else self._broken[3]

    def _catch_up(self, until: int, *, exchange: bool = False, shows: bool = False) -> None:
        if self._broken is not None:
            return
        began = time.monotonic()
        task = Task(until, self._trainer.length, self._seconds(), shows=exchange or shows, saves=exchange)
        reports = self._ask(self._given, task)
        self._broken = next((report.broken for report in reports.values() if report.broken), None)
        self._tell(reports)
        self._follow(reports)
        if self._pending:
            share = PIECE_S / max(time.monotonic() - began, 1e-3)
            self._piece = max(1, round(len(self._pending) * min(share, 2.0)))  # at most twice as many as before
        self._pending, self._shown = [], task.shows
        if task.shows and self._broken is None:
            self._collect(reports)
        if exchange:
            nets, state = weights_of(self._trainer.nets), on_cpu(self._trainer.state.state_dict())
            self._given = Given(until, nets, state)

    def _seconds(self) -> float:
        """The time, never the end of the run: what is noted is computed."""
        seconds, length = self._trainer.clock.seconds, self._trainer.length
        return seconds if length.seconds is None else min(seconds, (length.seconds - length.kept) * (1 - 1e-6))

    def _follow(self, reports: Mapping[str, Report]) -> None:
        """Hands the losses on, as means of the steps that are noted; counts what was skipped."""
        losses = {name: torch.tensor(mean) for report in reports.values() for name, mean in report.losses.items()}
        for after in self._pending if losses else ():
            for one in after:
                one.follow(losses)
        self._trainer.skipped = self._skipped + sum(report.skipped - self._skipped for report in reports.values())

    def _tell(self, reports: Mapping[str, Report]) -> None:
        for name, report in reports.items():
            if self._processes.setdefault(name, report.process) != report.process:
                self._say(
                    f"the node of {name} was lost and has begun again from its checkpoint, of {self._given.images:,} "
                    f"images: {report.process}"
                )
            self._processes[name], self.seconds[name] = report.process, report.seconds

    def _collect(self, reports: Mapping[str, Report]) -> None:
        trainer, state = self._trainer, dict(self._trainer.state.state_dict())
        for report in reports.values():
            assert report.trained is not None
            fill(trainer.nets, report.trained.nets)
            fill(trainer.ema.nets, report.trained.averages)
            state |= report.trained.objective
            for name, moments in report.trained.optimizers.items():
                load_optimizer_state(self.optimizers[name], moments)
        trainer.state.load_state_dict(state)


class Elsewhere:
    """Stands for a loader with `images` of an epoch, where nodes load what they need."""

    def __init__(self, images: int):
        self._images = images

    def __len__(self) -> int:
        return self._images

    def batches(self, position: int) -> Generator[Batch, None, None]:
        while True:
            yield {"A": torch.empty(0)}


def place(trainer: Trainer, modules: Sequence[Module], ask: Ask, *, every: Span, say: Say) -> Placed:
    """Lets nodes compute the steps of `trainer`, which has what it continues from."""
    step = Placed(trainer, modules, ask, every=every, say=say)
    trainer.step, trainer.loaders = step, {"train": Elsewhere(trainer.epoch)}
    trainer.draws = {"train": 0}
    return step
