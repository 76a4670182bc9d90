"""Learning rates over a run: each network's own schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from velogan.engine.duration import Duration, Length, Span, parse_span


class ScheduleConfig(BaseModel):
    """How the learning rate changes. An epoch here is 1/200 of the run if its length is not in epochs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["linear", "step", "plateau", "cosine", "exponential", "constant"] = Field(
        default="linear",
        description="linear: constant, then down to nearly 0; step: times `gamma` at the end of each span `every`; "
        "plateau: times `gamma` when the generators' loss (the translators') has not improved by 1 % for `patience` "
        "epochs; cosine: half a cosine to 0; exponential: times `gamma` in each span `every`, a little with each step; "
        "constant.",
    )
    hold: float = Field(default=0.5, ge=0, le=1, description="linear: share of the run before the rate starts to fall.")
    gamma: float = Field(default=0.1, gt=0, le=1, description="Factor of step, plateau and exponential.")
    every: Duration | None = Field(
        default=None,
        description="step and exponential: the span in which the rate becomes `gamma` times what it was: 10000 "
        "images. Default: 50 epochs of step; exponential needs it.",
    )
    patience: int = Field(default=5, ge=1, description="plateau: epochs without improvement.")
    warmup: Duration | None = Field(
        default=None, description="The span at the start in which the rate rises from 0, beside the schedule: 5 %."
    )


Passed = Callable[[Span], float]
"""How many times a span has passed since the start of the run, with the fraction of the next."""


_IMPROVES = 0.01
"""The relative improvement that counts for `plateau`, as in the reference implementation."""

_STEP = 50
"""Epochs between the falls of `step`, as in the reference implementation."""


@dataclass
class _Plateau:
    """What `plateau` knows of the watched loss."""

    reduced: float = 1.0
    best: float | None = None
    waited: int = 0

    def see(self, loss: float, config: ScheduleConfig) -> None:
        if self.best is None or loss < self.best * (1 - math.copysign(_IMPROVES, self.best)):
            self.best, self.waited = loss, 0
        else:
            self.waited += 1
        if self.waited > config.patience:
            self.reduced, self.waited = self.reduced * config.gamma, 0


class Schedule:
    """Sets the learning rates of `optimizers`: by `config`, and by what a network's rule changes of it.

    Rates change at the start of each epoch of the schedule, those with a span (`every`, `warmup`) with each step.
    `epochs` is the run's length in epochs of the schedule; the trainer sets it.
    """

    def __init__(self, config: ScheduleConfig, optimizers: Mapping[str, torch.optim.Optimizer], *, epochs: float = 1):
        self.optimizers, self.epochs, self.epoch = optimizers, epochs, 1
        groups = [group for optimizer in optimizers.values() for group in optimizer.param_groups]
        self._configs = {group["name"]: config.model_copy(update=group["schedule"]) for group in groups}
        self._plateaus = {name: _Plateau() for name, own in self._configs.items() if own.kind == "plateau"}

    def check(self, length: Length) -> None:
        """ValueError for a warm-up that is longer than the run."""
        for network, config in self._configs.items():
            if config.warmup and length.shorter_than(parse_span(config.warmup)):
                raise ValueError(
                    f"schedule.warmup={config.warmup} is longer than the run, {length.span}, so the learning rate of "
                    f"{network} would never reach its value: give a shorter one"
                )

    def factor(self, network: str, passed: Passed) -> float:
        """The factor on the rate of `network`."""
        config = self._configs[network]
        factor = max(self._factor(network, config, passed), 0.0)
        if config.warmup:  # Goyal et al. 2017, section 2.2
            factor *= min(passed(parse_span(config.warmup)), 1.0)
        return factor

    def _factor(self, network: str, config: ScheduleConfig, passed: Passed) -> float:
        """Without warm-up. linear is 1 - max(0, e - n) / (n' + 1): n epochs held, n' epochs falling, e from 1."""
        past = self.epoch - 1
        match config.kind:
            case "linear":
                held = round(self.epochs * config.hold)
                return 1.0 - max(0, self.epoch - held) / (max(self.epochs - held, 0) + 1)
            case "step":
                falls = math.floor(passed(parse_span(config.every))) if config.every else past // _STEP
                return config.gamma**falls
            case "cosine":  # Loshchilov and Hutter 2017, eq. 5, one period, minimum 0
                return 0.5 * (1 + math.cos(math.pi * min(past / self.epochs, 1.0)))
            case "exponential":
                assert config.every is not None  # `check_schedule` asks for it
                return config.gamma ** passed(parse_span(config.every))
            case "plateau":
                return self._plateaus[network].reduced
            case "constant":
                return 1.0

    def finish_epoch(self, loss: float | None) -> None:
        """Moves to the next epoch; `loss` is the watched phase's mean over the last one (for plateau).

        None where that phase did not run in it: then plateau has seen nothing, and does not count the epoch.
        """
        self.epoch += 1
        if loss is not None:
            for network, plateau in self._plateaus.items():
                plateau.see(loss, self._configs[network])

    def apply(self, passed: Passed) -> None:
        """Sets every group's learning rate for the current epoch and step."""
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                rate = group["initial_lr"] * self.factor(group["name"], passed)
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "plateaus": {name: asdict(one) for name, one in self._plateaus.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch = state["epoch"]
        self._plateaus = {name: _Plateau(**one) for name, one in state["plateaus"].items()}
