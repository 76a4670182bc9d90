"""A worker process that trains the networks of one phase on request, with copies of the other networks."""

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
class PhaseState:
    """The state of a phase: weights and averages of its networks, by role, and `state_dict` of its worker's trainer."""

    nets: Mapping[str, Weights]
    averages: Mapping[str, Weights]
    trainer: Mapping[str, Any]

    @classmethod
    def copy_from(cls, trainer: Trainer, roles: Sequence[str]) -> PhaseState:
        """Copy the state of the phase that trains the networks `roles` to the CPU."""
        averages = {role: trainer.ema.nets[role] for role in roles if role in trainer.ema.nets}
        nets = {role: trainer.nets[role] for role in roles}
        return cls(copy_weights(nets), copy_weights(averages), copy_to_cpu(trainer.state_dict()))


@dataclass(frozen=True)
class TrainRequest:
    """A request to a worker to train.

    target_images: number of images seen at which the worker stops
    length: the length of the run
    seconds: elapsed time of the run
    nets, objective: weights of all networks and state of the objective; only for a new process and after an exchange
    phase: the state of the worker's phase; only for a new process
    """

    target_images: int
    length: Length
    seconds: float
    nets: Mapping[str, Weights] | None = None
    objective: Weights | None = None
    phase: PhaseState | None = None


@dataclass(frozen=True)
class TrainReport:
    """A worker's reply to a request.

    losses: mean of each `phase/term` since the last report
    state: the phase's state; None if a value was not finite, or if a restarted process had no state to train from
    nonfinite: phase, names and step number of a non-finite value
    """

    losses: Mapping[str, float]
    state: PhaseState | None
    nonfinite: tuple[str, Sequence[str], int] | None = None


class PacedContext(DistributedContext):
    """The context of a worker's trainer: stops it after `steps` steps; its elapsed time is always `seconds`."""

    steps, seconds = 0, 0.0

    def sync_clock_and_stop(self, *, seconds: float, stop_requested: bool) -> tuple[float, bool]:
        self.steps -= 1  # called at the start, and after each step
        return self.seconds, self.steps < 0


class PhaseWorker:
    """Trains the networks `roles` of one phase, in a process of its own.

    digests: hashes of the images of A and B on the host that has the run folder
    threads: number of CPU threads if `config` sets none
    """

    def __init__(self, config: Config, phase: str, roles: Sequence[str], digests: Sequence[str], threads: int = 0):
        if config.engine.threads is None and threads:
            config = config.change(engine={"threads": threads})
        with Display(quiet=True) as display:
            data = open_data(config.data, task=display.task, print_line=display.print_line)
        if [data.a.digest, data.b.digest] != list(digests):
            raise ValueError(
                f"data.path (--data): {socket.gethostname()} has other images than the host with the run folder"
            )
        self._roles, self._context = roles, PacedContext()
        self._has_state = False
        self._trainer = build_trainer(config, data, distributed=self._context, active_phases=[phase])

    def execute(self, request: TrainRequest) -> TrainReport:
        """Load the states in the request, train to its `target_images`, and return a report."""
        trainer, phase = self._trainer, request.phase
        if phase is None and not self._has_state:
            return TrainReport({}, None)
        if request.nets is not None and request.objective is not None:
            load_weights(trainer.nets, request.nets)
            trainer.state.load_state_dict(request.objective)
        if phase is not None:
            load_weights(trainer.nets, phase.nets)
            load_weights(trainer.ema.nets, phase.averages)
            trainer.load_state_dict(phase.trainer)
            self._has_state = True
        self._context.steps = -(-(request.target_images - trainer.images) // trainer.images_per_step)
        self._context.seconds = request.seconds
        try:
            trainer.run(request.length)
        except NonFiniteError as error:
            return TrainReport(trainer.stats.tick(), None, (error.phase, list(error.names), error.number))
        return TrainReport(trainer.stats.tick(), PhaseState.copy_from(trainer, self._roles))


def copy_weights(nets: Nets) -> dict[str, Weights]:
    """Return copies of all parameters and buffers on the CPU, by role."""
    return {role: copy_to_cpu(net.state_dict()) for role, net in nets.items()}


def load_weights(nets: Nets, weights: Mapping[str, Weights]) -> None:
    for role, state in weights.items():
        nets[role].load_state_dict(state)
