"""A node: a process that trains the networks of one module on request, with copies of the others."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from velogan.config import Config
from velogan.data.sets.pair import open_data
from velogan.engine.distributed import DistributedContext
from velogan.engine.duration import Length
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.trainer import Trainer, copy_to_cpu
from velogan.observe.progress import Display
from velogan.training.build import build_trainer
from velogan.types import Nets

Weights = dict[str, Tensor]
"""Parameters and buffers of a network, or of an objective, by name, on the CPU."""


@dataclass(frozen=True)
class ModuleState:
    """All that a node trains: weights and averages by role, and the state of its trainer (`Trainer.state_dict`)."""

    nets: Mapping[str, Weights]
    averages: Mapping[str, Weights]
    trainer: Mapping[str, Any]

    @classmethod
    def of(cls, trainer: Trainer, roles: Sequence[str]) -> ModuleState:
        """Copy the state of `roles` from `trainer`."""
        averages = {role: trainer.ema.nets[role] for role in roles if role in trainer.ema.nets}
        nets = {role: trainer.nets[role] for role in roles}
        return cls(copy_weights(nets), copy_weights(averages), copy_to_cpu(trainer.state_dict()))


@dataclass(frozen=True)
class Order:
    """Train until `until` images are seen, in a run of this `length` that has lasted `seconds`.

    `nets` and `objective` (the objective's state) are there after an exchange. A new process gets `own`, too.
    """

    until: int
    length: Length
    seconds: float
    nets: Mapping[str, Weights] | None = None
    objective: Weights | None = None
    own: ModuleState | None = None


@dataclass(frozen=True)
class Report:
    """The result of an order: means of the losses since the last report, and the state of the module.

    `state` is None if the process is new and has none, so that it did nothing, or if values were not finite; then
    `broken` has the phase, the names and the number of the step.
    """

    losses: Mapping[str, float]
    state: ModuleState | None
    broken: tuple[str, Sequence[str], int] | None = None


class PacedContext(DistributedContext):
    """A single process that stops after this many `steps`, at `seconds` of the run."""

    steps, seconds = 0, 0.0

    def sync_clock_and_stop(self, *, seconds: float, stop_requested: bool) -> tuple[float, bool]:
        self.steps -= 1  # called at the start, and after each step
        return self.seconds, self.steps < 0


class Node:
    """The trainer of a phase and its networks, `roles`, in a process of its own.

    `digests` are those of the images of A and B. `threads` count if `config` sets none.
    """

    def __init__(self, config: Config, phase: str, roles: Sequence[str], digests: Sequence[str], threads: int = 0):
        if config.engine.threads is None and threads:
            config = config.change(engine={"threads": threads})
        with Display(quiet=True) as display:
            data = open_data(config.data, task=display.task, print_line=display.print_line)
        if [data.a.digest, data.b.digest] != list(digests):
            raise ValueError(
                f"data.path (--data): {socket.gethostname()} needs the images of the host of the run folder"
            )
        self._roles, self._paced, self._has_state = roles, PacedContext(), False
        self._trainer = build_trainer(config, data, distributed=self._paced, active_phases=[phase])

    def advance(self, order: Order) -> Report:
        """Carry out `order`."""
        trainer, own = self._trainer, order.own
        if own is None and not self._has_state:
            return Report({}, None)
        if order.nets is not None and order.objective is not None:
            load_weights(trainer.nets, order.nets)
            trainer.state.load_state_dict(order.objective)
        if own is not None:
            load_weights(trainer.nets, own.nets)
            load_weights(trainer.ema.nets, own.averages)
            trainer.load_state_dict(own.trainer)
            self._has_state = True
        self._paced.steps = -(-(order.until - trainer.images) // trainer.batch_size)
        self._paced.seconds = order.seconds
        try:
            trainer.run(order.length)
        except NonFiniteError as error:
            return Report(trainer.stats.tick(), None, (error.phase, list(error.names), error.number))
        return Report(trainer.stats.tick(), ModuleState.of(trainer, self._roles))


def copy_weights(nets: Nets) -> dict[str, Weights]:
    """Copy all weights and buffers to the CPU, by role."""
    return {role: copy_to_cpu(net.state_dict()) for role, net in nets.items()}


def load_weights(nets: Nets, weights: Mapping[str, Weights]) -> None:
    """Load `weights` by role into `nets`."""
    for role, state in weights.items():
        nets[role].load_state_dict(state)
