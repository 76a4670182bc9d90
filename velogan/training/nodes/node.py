"""A node: a process that trains the networks of one module, when it is asked to."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from velogan.engine.distributed import DistributedContext
from velogan.engine.duration import Length
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.trainer import Trainer, on_cpu
from velogan.files import counted
from velogan.objectives.base import Phase
from velogan.store.checkpoint import load_state, load_weights, newest_whole, remove_old, save_checkpoint
from velogan.types import Nets

Weights = dict[str, Tensor]
"""A network's, or an objective's, parameters and buffers by name, on the CPU."""

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
    """What a node computes with from `images` seen on: every network's weights by role, and the objective's state.

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
    """What a node did: images seen, means of its losses since the last report, steps skipped in the whole run.

    `seconds` of the processor it has worked in this `process`. `broken` are the phase, the names, the number of the
    step and the origin of numbers that were not finite.
    """

    images: int
    losses: Mapping[str, float]
    skipped: int
    seconds: float
    process: str
    trained: Trained | None = None
    broken: tuple[str, Sequence[str], int, str] | None = None


class Led(DistributedContext):
    """Alone with its gradients; the time, and when to stop, are those of the process that keeps the run folder."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds, self._steps = 0.0, 0

    def lead(self, *, steps: int, seconds: float) -> None:
        """Lets the trainer run so many steps, at `seconds` of the run."""
        self._seconds, self._steps = seconds, steps + 1

    def sync_clock_and_stop(self, *, seconds: float, stopping: bool) -> tuple[float, bool]:
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
            images=trainer.images,
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
            fill(trainer.ema.nets, given.averages or {})
        if trainer.images < given.images:
            raise OSError(
                f"{self._folder} holds no checkpoint of {counted(given.images, 'image')}: nodes must see the run "
                "folder, --out"
            )
        mine = self._module.trains if trainer.images > given.images else ()  # saved, but not heard any more
        fill(trainer.nets, {role: weights for role, weights in given.nets.items() if role not in mine})
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
            optimizers=on_cpu(state["optimizers"]),
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


def weights_of(nets: Nets) -> dict[str, Weights]:
    """Copies of all weights and buffers, on the CPU."""
    return {role: on_cpu(net.state_dict()) for role, net in nets.items()}


def fill(nets: Nets, weights: Mapping[str, Weights]) -> None:
    """Gives the networks of `nets` the `weights` by role."""
    for role, mine in weights.items():
        nets[role].load_state_dict(mine)
