"""One training by several nodes: each trains the networks of one module, with copies of the others'.

After "Improving Cycle-GAN using Intel AI DevCloud" (2018): the modules exchange weights now and then, and in between
each computes with the others' as they were. A node is a trainer whose step has the other phases left out. The process
that keeps the run folder runs the whole trainer, but its step computes nothing: as on a GPU it is only noted, and the
nodes are asked to catch up when networks are exchanged, when seconds have passed, or when somebody looks.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from velogan.engine.duration import Length, Span
from velogan.engine.loss_scale import LossScale
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.optimizers import load_optimizer_state
from velogan.engine.ranks import Ranks
from velogan.engine.step import After
from velogan.engine.trainer import Trainer
from velogan.objectives.base import Phase
from velogan.store.checkpoint import load_state, load_weights, newest_whole, remove_old, save_checkpoint
from velogan.types import Batch, Nets

Weights = dict[str, Tensor]
"""A network's, or an objective's, parameters and buffers by name, on the CPU."""

PIECE_S = 2.0
"""About how many seconds nodes compute before they are heard again: so late is a wish to stop."""

FOLDER = "modules"
"""Within the run folder: a folder for each module, with its checkpoint."""


@dataclass(frozen=True)
class Module:
    """Networks that one node trains, and the phases that do so. It has the name of the first of these."""

    name: str
    phases: tuple[str, ...]
    trains: tuple[str, ...]


def modules_of(phases: Sequence[Phase]) -> list[Module]:
    """The modules of a step: phases that train a network together, or share their name, are in one."""
    groups: list[list[Phase]] = []
    for phase in phases:
        tied = [group for group in groups if any(_tied(phase, other) for other in group)]
        groups = [group for group in groups if group not in tied]
        groups.append([*(other for group in tied for other in group), phase])
    groups.sort(key=lambda group: phases.index(group[0]))
    return [
        Module(
            group[0].name,
            tuple(dict.fromkeys(phase.name for phase in group)),
            tuple(dict.fromkeys(role for phase in group for role in phase.trains)),
        )
        for group in groups
    ]


def _tied(one: Phase, other: Phase) -> bool:
    return one.name == other.name or bool(set(one.trains) & set(other.trains))


@dataclass(frozen=True)
class Given:
    """What all nodes have at `images` seen: every network's weights by role, and the objective's state.

    `averages` and `trainer`, what else a checkpoint holds, are there at the start of a job only: later each node knows
    its own.
    """

    images: int
    nets: Mapping[str, Weights]
    objective: Weights
    averages: Mapping[str, Weights] | None = None
    trainer: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Task:
    """What a node shall do: compute until `until` images are seen, in a run of this `length` that took `seconds`.

    `shows`: its report has all that it trains. `saves`: that is also kept in its own checkpoint.
    """

    until: int
    length: Length
    seconds: float
    shows: bool
    saves: bool


@dataclass(frozen=True)
class Trained:
    """All that a node trains: networks and averages by role, optimizers by name, what it changed of the objective."""

    nets: Mapping[str, Weights]
    averages: Mapping[str, Weights]
    optimizers: Mapping[str, Any]
    objective: Weights


@dataclass(frozen=True)
class Report:
    """What a node did: means of its losses since the last report, steps that it skipped in the whole run.

    `seconds` of the processor it has worked in this `process`. `broken` are the phase, the names, the number of the
    step and the origin of numbers that were not finite.
    """

    losses: Mapping[str, float]
    skipped: int
    seconds: float
    process: str
    trained: Trained | None = None
    broken: tuple[str, Sequence[str], int, str] | None = None


class Led(Ranks):
    """Alone with its gradients; the time, and when to stop, are those of the process that keeps the run folder."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds, self._steps = 0.0, 0

    def lead(self, *, steps: int, seconds: float) -> None:
        """Lets the trainer run so many steps, at `seconds` of the run."""
        self._seconds, self._steps = seconds, steps + 1

    def agree(self, *, seconds: float, stopping: bool) -> tuple[float, bool]:
        self._steps -= 1  # asked at the start, and after each step
        return self._seconds, self._steps <= 0


class Node:
    """A module's trainer in a process of its own, with its checkpoint in `folder`.

    `build` makes the trainer of the module's phases, led by what it is given. A node that was lost begins anew with
    its own checkpoint, of the last exchange; the next task then asks for all images since.
    """

    def __init__(self, module: Module, build: Callable[[Led], Trainer], folder: Path):
        self._module, self._folder, self._led = module, folder, Led()
        self._trainer = build(self._led)
        self._given: int | None = None
        self._objective: Weights = {}
        checkpoint, _ = newest_whole(folder)
        if checkpoint is not None:
            self._load(checkpoint)
        self._began = time.process_time()

    def advance(self, given: Given, task: Task) -> Report:
        """Does the task, with the copies of other networks that are `given`; asked again it does no more."""
        if self._given != given.images:
            self._take(given)
        trainer = self._trainer
        broken = None
        if task.until > trainer.images:
            self._led.lead(steps=-(-(task.until - trainer.images) // trainer.batch_size), seconds=task.seconds)
            try:
                trainer.run(task.length)
            except NonFiniteError as error:
                broken = (error.phase, list(error.found), error.number, error.origin)
        trained = self._trained() if task.shows and broken is None else None
        if task.saves and broken is None:
            self._save()
        return Report(
            losses=trainer.stats.tick(),
            skipped=trainer.skipped,
            seconds=time.process_time() - self._began,
            process=f"{socket.gethostname()}, process {os.getpid()}",
            trained=trained,
            broken=broken,
        )

    def _take(self, given: Given) -> None:
        """Takes copies of all networks and of the objective's state, and at a job's start all the rest."""
        trainer = self._trainer
        if given.trainer is not None and trainer.images <= given.images:
            trainer.load_state_dict(given.trainer)
            _fill(trainer.ema.nets, given.averages or {})
        if trainer.images < given.images:
            raise OSError(
                f"{self._folder} holds no checkpoint of {given.images:,} images: nodes must see the run folder, --out"
            )
        mine = self._module.trains if trainer.images > given.images else ()  # saved, but not heard any more
        _fill(trainer.nets, {role: weights for role, weights in given.nets.items() if role not in mine})
        if not mine:
            trainer.state.load_state_dict(given.objective)
        self._given, self._objective = given.images, dict(given.objective)

    def _trained(self) -> Trained:
        trainer, roles = self._trainer, self._module.trains
        state = trainer.state_dict()
        before = self._objective
        return Trained(
            nets=weights_of({role: trainer.nets[role] for role in roles}),
            averages=weights_of(self._averages()),
            optimizers=_on_cpu(state["optimizers"]),
            objective={name: value for name, value in state["objective"].items() if not value.equal(before[name])},
        )

    def _averages(self) -> dict[str, nn.Module]:
        return {role: net for role, net in self._trainer.ema.nets.items() if role in self._module.trains}

    def _files(self) -> dict[str, nn.Module]:
        averages = {f"{role}.ema": net for role, net in self._averages().items()}
        return {**{role: self._trainer.nets[role] for role in self._module.trains}, **averages}

    def _save(self) -> None:
        files = self._files()
        save_checkpoint(
            self._folder,
            images=self._trainer.images,
            networks=files,
            headers={name: {"role": name.removesuffix(".ema"), "module": self._module.name} for name in files},
            state=self._trainer.state_dict(),
            clock={"processor_seconds": time.process_time() - self._began},
        )
        remove_old(self._folder, keep=1)

    def _load(self, checkpoint: Path) -> None:
        for name, net in self._files().items():
            net.load_state_dict(load_weights(checkpoint / f"{name}.safetensors")[1])
        self._trainer.load_state_dict(load_state(checkpoint)[0])


Ask = Callable[[Given, Task], Mapping[str, Report]]
"""Gives all nodes a task and waits for their reports, by module."""


class Placed:
    """A step that nodes compute: the `trainer`'s own, whose networks and optimizers it keeps up to date.

    Networks are exchanged each time `every` has passed, in images or epochs. `say` tells of nodes that began again.
    """

    def __init__(
        self, trainer: Trainer, modules: Sequence[Module], ask: Ask, *, every: Span, length: Length, say: Say
    ) -> None:
        self._trainer, self._modules, self._ask, self._say = trainer, modules, ask, say
        self._every, self._length = every, length
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
            _on_cpu(trainer.state.state_dict()),
            averages=weights_of(trainer.ema.nets),
            trainer=_on_cpu(trainer.state_dict()),
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
        task = Task(until, self._length, self._seconds(), shows=exchange or shows, saves=exchange)
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
            nets, state = weights_of(self._trainer.nets), _on_cpu(self._trainer.state.state_dict())
            self._given = Given(until, nets, state)

    def _seconds(self) -> float:
        """The time, never the end of the run: what is noted is computed."""
        seconds, length = self._trainer.clock.seconds, self._length
        return seconds if length.total is not None else min(seconds, length.span.amount * 60 * (1 - 1e-6))

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
            _fill(trainer.nets, report.trained.nets)
            _fill(trainer.ema.nets, report.trained.averages)
            state |= report.trained.objective
            for name, moments in report.trained.optimizers.items():
                load_optimizer_state(self.optimizers[name], moments)
        trainer.state.load_state_dict(state)


Say = Callable[[str], None]
"""Tells the user a line."""


class Elsewhere:
    """Stands for a loader with `images` of an epoch, where nodes load what they need."""

    def __init__(self, images: int):
        self._images = images

    def __len__(self) -> int:
        return self._images

    def batches(self, position: int) -> Generator[Batch, None, None]:
        while True:
            yield {"A": torch.empty(0)}


def place(trainer: Trainer, modules: Sequence[Module], ask: Ask, *, every: Span, length: Length, say: Say) -> Placed:
    """Lets nodes compute the steps of `trainer`, which has what it continues from."""
    step = Placed(trainer, modules, ask, every=every, length=length, say=say)
    trainer.step, trainer.loaders = step, {"train": Elsewhere(trainer.epoch)}
    trainer.draws = {"train": 0}
    return step


def weights_of(nets: Nets) -> dict[str, Weights]:
    """Copies of all weights and buffers, on the CPU."""
    return {role: _on_cpu(net.state_dict()) for role, net in nets.items()}


def _fill(nets: Nets, weights: Mapping[str, Weights]) -> None:
    for role, mine in weights.items():
        nets[role].load_state_dict(mine)


def _on_cpu(state: Any) -> Any:
    """A copy of nested dicts and lists with all tensors on the CPU."""
    if isinstance(state, Tensor):
        return state.detach().cpu().clone()
    if isinstance(state, Mapping):
        return {name: _on_cpu(value) for name, value in state.items()}
    return [_on_cpu(value) for value in state] if isinstance(state, (list, tuple)) else state
