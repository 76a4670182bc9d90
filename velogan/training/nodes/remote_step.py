"""The step of the process that keeps the run folder: it only counts steps, and orders nodes to compute them."""

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
from velogan.training.nodes.node import ModuleState, Order, Report, copy_weights, load_weights
from velogan.types import Batch

TARGET_ORDER_S = 2.0  # target seconds of an order, and hence the delay of a wish to stop

Advance = Callable[[Mapping[str, Order]], Mapping[str, Report]]
"""Let nodes carry out orders at the same time, by the names of their modules, and wait for all reports."""


class NodeState(Enum):
    """The state of a node between orders; `RemoteStep.schedule` has the transitions."""

    EMPTY = auto()  # its process is new, and has neither its own networks nor copies of the others
    IDLE = auto()  # it is between two exchanges
    AT_EXCHANGE = auto()  # its copies are to be replaced


class RemoteStep:
    """Replaces the step of `trainer`, whose networks, averages and optimizers it keeps up to date.

    Networks are exchanged each time `every` has passed, in images or epochs. `print_line` reports nodes that were lost.
    """

    def __init__(
        self,
        trainer: Trainer,
        modules: Sequence[Phase],
        advance: Advance,
        *,
        every: Span,
        print_line: Callable[[str], None],
    ) -> None:
        self._trainer, self._advance, self._every, self._print_line = trainer, advance, every, print_line
        self.nets, self.optimizers = trainer.nets, trainer.step.optimizers
        self.scale: LossScale | None = None
        self._epoch, self._piece = trainer.images_per_epoch, 1
        self._pending: list[Sequence[PostStepHook]] = []
        self._losses: dict[str, Tensor] = {}
        self._broken: NonFiniteError | None = None
        self._own = {phase.name: ModuleState.of(trainer, phase.trains) for phase in modules}
        self._states = dict.fromkeys(self._own, NodeState.EMPTY)
        self._exchange()
        trainer.step, trainer.loaders, trainer.num_uniforms = self, {"train": DummyLoader(self._epoch)}, {"train": 0}

    def __call__(
        self, batches: Mapping[str, Batch], *, number: int = 0, post_step_hooks: Sequence[PostStepHook] = ()
    ) -> dict[str, Tensor]:
        """Count a step; `batches` are empty. Its losses reach `post_step_hooks` once the nodes have reported them."""
        self._pending.append(post_step_hooks)
        until = self._trainer.images + self._trainer.batch_size
        exchanges = self._exchanges(until) > self._exchanges(self._trainer.images)
        if exchanges or len(self._pending) >= self._piece:
            self.schedule(until)
        if exchanges:
            self._exchange()
        return {}

    def check(self) -> None:
        """Wait until the trainer has what the nodes trained. Raises NonFiniteError if one found such values."""
        self.schedule(self._trainer.images)
        if self._broken is not None:
            raise self._broken

    def schedule(self, until: int) -> None:
        """Order the nodes that have seen fewer images than `until` to train, until all have seen them.

        | state       | order                                     | event                          | next state  |
        |-------------|-------------------------------------------|--------------------------------|-------------|
        | EMPTY       | its own state, copies of networks; train  | it reports a state             | IDLE        |
        | AT_EXCHANGE | new copies of networks; train             | it reports a state             | IDLE        |
        | IDLE        | train                                     | it reports a state             | IDLE        |
        | any         |                                           | it reports none, as it is new  | EMPTY       |
        | IDLE        |                                           | `_exchange`, when all are IDLE | AT_EXCHANGE |
        """
        started_at = time.monotonic()
        while self._broken is None and (orders := self._orders(until)):
            for name, report in self._advance(orders).items():
                self._losses |= {loss: torch.tensor(mean) for loss, mean in report.losses.items()}
                if report.broken is not None:
                    phase, names, number = report.broken
                    self._broken = self._broken or NonFiniteError(phase, names, number=number)
                elif report.state is not None:
                    self._states[name] = NodeState.IDLE
                    self._take_over(name, report.state)
                else:
                    self._states[name] = NodeState.EMPTY
                    self._print_line(
                        f"the node of {name} was lost; it begins again with the state that it returned last"
                    )
        for hook in chain.from_iterable(self._pending if self._losses else ()):
            if hook is not self._trainer.ema:  # nodes average what they train
                hook.on_step_end(self._losses)
        if self._pending:
            share = TARGET_ORDER_S / max(time.monotonic() - started_at, 1e-3)
            self._piece = max(1, round(len(self._pending) * min(share, 2.0)))  # at most twice as many as before
        self._pending = []

    def _orders(self, until: int) -> dict[str, Order]:
        """Return the orders due. Their time is never the end of the run: steps that were counted are computed."""
        seconds, length = self._trainer.clock.seconds, self._trainer.length
        if length.seconds is not None:
            seconds = min(seconds, (length.seconds - length.reserved) * (1 - 1e-6))
        orders = dict[str, Order]()
        for name, own in self._own.items():
            state = self._states[name]
            copies: Any = {} if state is NodeState.IDLE else {"nets": self._nets, "objective": self._objective}
            if own.trainer["images"] < until:
                orders[name] = Order(until, length, seconds, **copies, own=own if state is NodeState.EMPTY else None)
        return orders

    def _take_over(self, name: str, own: ModuleState) -> None:
        """Load the state of a module into the trainer; of the objective's state what this module has changed."""
        trainer, self._own[name] = self._trainer, own
        load_weights(trainer.nets, own.nets)
        load_weights(trainer.ema.nets, own.averages)
        for optimizer, moments in own.trainer["optimizers"].items():
            load_optimizer_state(self.optimizers[optimizer], moments)
        objective = own.trainer["objective"].items()
        changed = {key: value for key, value in objective if not value.equal(self._objective[key])}
        trainer.state.load_state_dict({**trainer.state.state_dict(), **changed})

    def _exchange(self) -> None:
        """Copy what all nodes have trained, for all of them."""
        self._nets, self._objective = copy_weights(self._trainer.nets), copy_to_cpu(self._trainer.state.state_dict())
        for name, own in self._own.items():
            self._own[name] = replace(own, trainer={**own.trainer, "objective": self._objective})
            if self._states[name] is NodeState.IDLE:
                self._states[name] = NodeState.AT_EXCHANGE

    def _exchanges(self, images: int) -> int:  # up to these images
        return math.floor(self._every.passed(images=images, seconds=0, progress=0, images_per_epoch=self._epoch))


class DummyLoader:
    """A loader that knows only the `images` of an epoch; the nodes load the data themselves."""

    def __init__(self, images: int):
        self._images = images

    def __len__(self) -> int:
        return self._images

    def batches(self, position: int) -> Generator[Batch, None, None]:
        yield from repeat({"A": torch.empty(0)})
