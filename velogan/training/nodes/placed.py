"""The step of the process that keeps the run folder: it notes what nodes compute, and asks them to catch up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

from velogan.engine.duration import Span
from velogan.engine.loss_scale import LossScale
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.optimizers import load_optimizer_state
from velogan.engine.step import After
from velogan.engine.trainer import Trainer, on_cpu
from velogan.files import counted
from velogan.training.nodes.node import Given, Module, Report, Task, Trained, fill, weights_of
from velogan.types import Batch

Say = Callable[[str], None]
"""Tells the user a line."""

PIECE_S = 2.0
"""About how many seconds nodes compute before they are heard again: so late is a wish to stop."""


class Nodes(Protocol):
    """Nodes by the names of their modules; each has one task at a time."""

    def give(self, name: str, given: Given, task: Task) -> None:
        """Gives a node a task."""
        ...

    def hear(self) -> tuple[str, Report]:
        """Waits for the next report of a node that has a task: its name, and the report."""
        ...


class Placed:
    """Takes the place of a trainer's step, which nodes compute; keeps networks and optimizers of `trainer` up to date.

    The trainer has what it continues from.

    Networks are exchanged each time `every` has passed, in images or epochs. With `waits` all nodes exchange together.
    Without, each that has come so far takes what the others have handed in last, and goes on to its own end: the run
    is then as far as its slowest node. `say` tells of nodes that began again.
    """

    def __init__(
        self, trainer: Trainer, modules: Sequence[Module], nodes: Nodes, *, every: Span, waits: bool, say: Say
    ) -> None:
        self._trainer, self._nodes, self._say = trainer, nodes, say
        self._every, self._waits = every, waits
        self.optimizers = trainer.step.optimizers
        self.scale: LossScale | None = None
        self._pending: list[Sequence[After]] = []
        self._piece, self._losses = 1, dict[str, Tensor]()
        self._skipped_before, self._skipped = trainer.skipped, dict[str, int]()
        self._broken: tuple[str, Sequence[str], int, str] | None = None
        self._processes: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        """Of the processor, by module, in its present process."""
        first = Given(
            trainer.images,
            weights_of(trainer.nets),
            on_cpu(trainer.state.state_dict()),
            averages=weights_of(trainer.ema.nets),
            trainer=on_cpu(trainer.state_dict()),
        )
        self._standing = {one.name: _Standing(first, trainer.images, trainer.images) for one in modules}
        trainer.step, trainer.loaders, trainer.draws = self, {"train": Elsewhere(trainer.epoch)}, {"train": 0}

    def __call__(
        self, batches: Mapping[str, Batch], *, number: int = 0, after: Sequence[After] = ()
    ) -> dict[str, Tensor]:
        """Notes a step; `batches` are empty. Its losses reach `after` when the nodes are heard."""
        self._pending.append(after)
        before, until = self._trainer.images, self._trainer.images + self._trainer.batch_size
        exchange = self._waits and self._exchanges(until) > self._exchanges(before)
        if exchange or len(self._pending) >= self._piece:
            self._catch_up(until)
        return {}

    def _exchanges(self, images: int) -> int:
        return math.floor(self._every.passed(images=images, seconds=0, progress=0, epoch=self._trainer.epoch))

    def check(self) -> None:
        """Waits for the nodes, and takes what they trained. NonFiniteError where one found such numbers."""
        self._catch_up(self._trainer.images, shows=True)
        if self._broken is not None:
            phase, found, number, _ = self._broken
            raise NonFiniteError(phase, found, number=number)

    def origin(self, error: NonFiniteError, batches: Mapping[str, Batch]) -> str:
        """Where its node says that it began."""
        return "" if self._broken is None else self._broken[3]

    def _catch_up(self, until: int, *, shows: bool = False) -> None:
        """Until all nodes have seen so many images, and with `shows` have shown what they trained."""
        began = time.monotonic()
        while self._broken is None:
            for name, one in self._standing.items():
                if not one.busy and (task := self._next(one, until, shows=shows)):
                    one.busy = True
                    self._nodes.give(name, one.given, task)
            if all((one.shown if shows else one.images) >= until for one in self._standing.values()):
                break
            self._hear()
        for one in chain.from_iterable(self._pending if self._losses else ()):
            if one is not self._trainer.ema:  # nodes average what they train
                one.follow(self._losses)
        if self._pending:
            share = PIECE_S / max(time.monotonic() - began, 1e-3)
            self._piece = max(1, round(len(self._pending) * min(share, 2.0)))  # at most twice as many as before
        self._pending = []

    def _next(self, one: _Standing, until: int, *, shows: bool) -> Task | None:
        """What a node that is free shall do now; None: it waits."""
        end = self._trainer.length.total or math.inf
        ahead = one.images >= until
        if ahead and shows and one.shown < until:
            return self._task(one.images, shows=True)
        if ahead and (self._waits or one.images >= end):
            return None
        if one.images >= self._end_of(one):
            if one.shown < one.images:  # from its own checkpoint: what it has is not known here
                return self._task(one.images, shows=True)
            self._exchange(one)
        stop = min(self._end_of(one), end if ahead else until)
        exchanges = stop == self._end_of(one)
        return self._task(int(stop), shows=shows or exchanges, saves=exchanges)

    def _task(self, until: int, *, shows: bool, saves: bool = False) -> Task:
        return Task(until, self._trainer.length, self._seconds(), shows=shows, saves=saves)

    def _end_of(self, one: _Standing) -> int:
        """The images at which a node's copies are old: after the first step with which the interval has passed."""
        if one.end is None:
            one.end, passed = one.given.images, self._exchanges(one.given.images)
            while self._exchanges(one.end) == passed:
                one.end += self._trainer.batch_size
        return one.end

    def _exchange(self, one: _Standing) -> None:
        """New copies for a node; for all of them where they wait for each other."""
        nets, state = weights_of(self._trainer.nets), on_cpu(self._trainer.state.state_dict())
        given = Given(one.images, nets, state)
        for node in self._standing.values() if self._waits else [one]:
            node.given, node.end = given, None

    def _seconds(self) -> float:
        """The time, never the end of the run: what is noted is computed."""
        seconds, length = self._trainer.clock.seconds, self._trainer.length
        return seconds if length.seconds is None else min(seconds, (length.seconds - length.kept) * (1 - 1e-6))

    def _hear(self) -> None:
        """Takes a report: where the node is, its losses, what it skipped, and what it trained where it shows that."""
        name, report = self._nodes.hear()
        one, before = self._standing[name], self._skipped_before
        one.busy, one.images = False, report.images
        if self._processes.setdefault(name, report.process) != report.process:
            self._say(
                f"the node of {name} was lost and has begun again from its checkpoint, of "
                f"{counted(one.given.images, 'image')}: {report.process}"
            )
        self._processes[name], self.seconds[name] = report.process, report.seconds
        self._losses |= {loss: torch.tensor(mean) for loss, mean in report.losses.items()}
        self._skipped[name] = report.skipped - before
        self._trainer.skipped = before + sum(self._skipped.values())
        self._broken = self._broken or report.broken
        if report.trained is not None and self._broken is None:
            one.shown = report.images
            self._collect(report.trained)

    def _collect(self, trained: Trained) -> None:
        trainer = self._trainer
        fill(trainer.nets, trained.nets)
        fill(trainer.ema.nets, trained.averages)
        for name, moments in trained.optimizers.items():
            load_optimizer_state(self.optimizers[name], moments)
        trainer.state.load_state_dict(dict(trainer.state.state_dict()) | dict(trained.objective))


@dataclass
class _Standing:
    """Where a node stands: images that it has seen, and of how many it has `shown` what it trained.

    `given` is what it computes with since its last exchange, `end` the images at its next one, once that is known.
    """

    given: Given
    images: int
    shown: int
    end: int | None = None
    busy: bool = False


class Elsewhere:
    """Stands for a loader with `images` of an epoch, where nodes load what they need."""

    def __init__(self, images: int):
        self._images = images

    def __len__(self) -> int:
        return self._images

    def batches(self, position: int) -> Generator[Batch, None, None]:
        while True:
            yield {"A": torch.empty(0)}
