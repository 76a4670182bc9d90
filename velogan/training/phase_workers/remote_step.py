"""The main process's step if workers train: it counts steps and lets the workers compute them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from itertools import chain, repeat
from typing import Any

import torch
from torch import Tensor

from velogan.engine.duration import Span
from velogan.engine.loss_scale import LossScale
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.optimizers import load_optimizer_state
from velogan.engine.step import PostStepHook
from velogan.engine.trainer import Trainer, copy_to_cpu
from velogan.objectives.base import Phase
from velogan.training.phase_workers.worker import PhaseState, TrainReport, TrainRequest, copy_weights, load_weights
from velogan.types import Batch

TARGET_REQUEST_S = 2.0  # target duration of a request in seconds, and hence the delay of a stop

ExecuteRequests = Callable[[Mapping[str, TrainRequest]], Mapping[str, TrainReport]]
"""Executes requests, keyed by phase, concurrently on the phases' workers; returns reports with the same keys."""


class WorkerState(Enum):
    """The state of a worker between requests; `RemoteStep.schedule` has the transitions."""

    EMPTY = auto()  # its process is new and has no weights
    IDLE = auto()  # between two exchanges
    AT_EXCHANGE = auto()  # its copies of the other networks are out of date


class RemoteStep:
    """Replaces the step of `trainer` by requests to workers, and loads their results into the trainer.

    phases: the phases, with one worker for each
    every: interval of exchanges, in images or epochs
    print_line: prints a line about a lost worker
    """

    def __init__(
        self,
        trainer: Trainer,
        phases: Sequence[Phase],
        execute: ExecuteRequests,
        *,
        every: Span,
        print_line: Callable[[str], None],
    ) -> None:
        self._trainer, self._execute = trainer, execute
        self._every, self._print_line = every, print_line
        self.nets, self.optimizers = trainer.nets, trainer.step.optimizers
        self.scale: LossScale | None = None
        self._images_per_epoch, self._steps_per_request = trainer.images_per_epoch, 1
        self._pending: list[Sequence[PostStepHook]] = []
        self._losses: dict[str, Tensor] = {}
        self._error: NonFiniteError | None = None
        self._phase_states = {phase.name: PhaseState.copy_from(trainer, phase.trains) for phase in phases}
        self._worker_states = dict.fromkeys(self._phase_states, WorkerState.EMPTY)
        self._exchange()
        trainer.step, trainer.loaders = self, {"train": DummyLoader(self._images_per_epoch)}
        trainer.num_uniforms = {"train": 0}

    def __call__(
        self, batches: Mapping[str, Batch], *, number: int = 0, post_step_hooks: Sequence[PostStepHook] = ()
    ) -> dict[str, Tensor]:
        """Count a step; `batches` are not used. `post_step_hooks` get its losses when the workers report them."""
        self._pending.append(post_step_hooks)
        target_images = self._trainer.images + self._trainer.images_per_step
        is_due = self._count_exchanges(target_images) > self._count_exchanges(self._trainer.images)
        if is_due or len(self._pending) >= self._steps_per_request:
            self.schedule(target_images)
        if is_due:
            self._exchange()
        return {}

    def check(self) -> None:
        """Let the workers train all counted steps. Raises NonFiniteError if one of their values is not finite."""
        self.schedule(self._trainer.images)
        if self._error is not None:
            raise self._error

    def schedule(self, target_images: int) -> None:
        """Let the workers train until all have seen `target_images`.

        | state       | request                                   | event                          | next state  |
        |-------------|-------------------------------------------|--------------------------------|-------------|
        | EMPTY       | its own state, copies of networks; train  | it reports a state             | IDLE        |
        | AT_EXCHANGE | new copies of networks; train             | it reports a state             | IDLE        |
        | IDLE        | train                                     | it reports a state             | IDLE        |
        | any         |                                           | it reports none: it restarted  | EMPTY       |
        | IDLE        |                                           | `_exchange`, when all are IDLE | AT_EXCHANGE |
        """
        started_at = time.monotonic()
        while self._error is None and (requests := self._due_requests(target_images)):
            for name, report in self._execute(requests).items():
                self._losses |= {loss: torch.tensor(mean) for loss, mean in report.losses.items()}
                if report.nonfinite is not None:
                    phase, names, number = report.nonfinite
                    self._error = self._error or NonFiniteError(phase, names, number=number)
                elif report.state is not None:
                    self._worker_states[name] = WorkerState.IDLE
                    self._load_phase(name, report.state)
                else:
                    self._worker_states[name] = WorkerState.EMPTY
                    self._print_line(f"the worker of {name} was lost; it restarts from the state that it returned last")
        for hook in chain.from_iterable(self._pending if self._losses else ()):
            if hook is not self._trainer.ema:  # workers average the networks that they train
                hook.on_step_end(self._losses)
        if self._pending:
            growth = min(TARGET_REQUEST_S / max(time.monotonic() - started_at, 1e-3), 2.0)
            self._steps_per_request = max(1, round(len(self._pending) * growth))
        self._pending = []

    def _due_requests(self, target_images: int) -> dict[str, TrainRequest]:
        """Return the due requests. Their `seconds` are less than a length in minutes, so workers train all steps."""
        seconds, length = self._trainer.clock.seconds, self._trainer.length
        if length.seconds is not None:
            seconds = min(seconds, (length.seconds - length.reserved) * (1 - 1e-6))
        requests = dict[str, TrainRequest]()
        for name, phase in self._phase_states.items():
            state = self._worker_states[name]
            copies: Any = {} if state is WorkerState.IDLE else {"nets": self._copies, "objective": self._objective}
            if phase.trainer["images"] < target_images:
                requests[name] = TrainRequest(
                    target_images, length, seconds, **copies, phase=phase if state is WorkerState.EMPTY else None
                )
        return requests

    def _load_phase(self, name: str, phase: PhaseState) -> None:
        """Load a phase's state into the trainer; of the objective, only the tensors that its worker changed."""
        trainer, self._phase_states[name] = self._trainer, phase
        load_weights(trainer.nets, phase.nets)
        load_weights(trainer.ema.nets, phase.averages)
        for key, state in phase.trainer["optimizers"].items():
            load_optimizer_state(self.optimizers[key], state)
        objective = phase.trainer["objective"].items()
        changed = {key: value for key, value in objective if not value.equal(self._objective[key])}
        trainer.state.load_state_dict({**trainer.state.state_dict(), **changed})

    def _exchange(self) -> None:
        """Copy all networks' weights and the objective's state; the next request to each worker sends the copies."""
        self._copies, self._objective = copy_weights(self._trainer.nets), copy_to_cpu(self._trainer.state.state_dict())
        for name, phase in self._phase_states.items():
            self._phase_states[name] = replace(phase, trainer={**phase.trainer, "objective": self._objective})
            if self._worker_states[name] is WorkerState.IDLE:
                self._worker_states[name] = WorkerState.AT_EXCHANGE

    def _count_exchanges(self, images: int) -> int:
        """Return the number of exchanges up to `images` seen."""
        return math.floor(
            self._every.count(images=images, seconds=0, progress=0, images_per_epoch=self._images_per_epoch)
        )


class DummyLoader:
    """A loader without images that knows only the length of an epoch; the workers load the images."""

    def __init__(self, images: int):
        self._images = images

    def __len__(self) -> int:
        return self._images

    def batches(self, position: int) -> Generator[Batch, None, None]:
        yield from repeat({"A": torch.empty(0)})
