"""Learning rates over a run: each network's own schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from velogan.engine.duration import Duration, Span, parse_span


class ScheduleConfig(BaseModel):
    """How the learning rate changes. An epoch here is 1/200 of the run if its length is not in epochs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["linear", "step", "cosine", "exponential", "constant"] = Field(
        default="linear",
        description="linear: constant, then down to nearly 0; step: times `gamma` at the end of each span `every`; "
        "cosine: half a cosine to 0; exponential: times `gamma` in each span `every`, a little with each step; "
        "constant.",
    )
    hold: float = Field(default=0.5, ge=0, le=1, description="linear: share of the run before the rate starts to fall.")
    gamma: float = Field(default=0.1, gt=0, le=1, description="Factor of step and exponential.")
    every: Duration | None = Field(
        default=None,
        description="step and exponential: the span in which the rate becomes `gamma` times what it was: 10000 "
        "images. Default: 50 epochs of step; exponential needs it.",
    )
    warmup: Duration | None = Field(
        default=None, description="The span at the start in which the rate rises from 0, beside the schedule: 5 %."
    )


Passed = Callable[[Span], float]
"""How many times a span has passed since the start of the run, with the fraction of the next."""


_STEP = 50
"""Epochs between the falls of `step`, as in the reference implementation."""


class Schedule:
    """Sets the learning rates of `optimizers`: by `config`, and by what a network's rule changes of it.

    Rates change at the start of each epoch of the schedule, those with a span (`every`, `warmup`) with each step.
    `epochs` is the run's length in epochs of the schedule; the trainer sets it. It has no state: a rate is a function
    of the progress of the run.
    """

    def __init__(self, config: ScheduleConfig, optimizers: Mapping[str, torch.optim.Optimizer], *, epochs: float = 1):
        self.optimizers, self.epochs = optimizers, epochs
        groups = [group for optimizer in optimizers.values() for group in optimizer.param_groups]
        self._configs = {group["name"]: config.model_copy(update=group["schedule"]) for group in groups}

    def factor(self, network: str, epoch: int, passed: Passed) -> float:
        """Compute the factor on the rate of `network` in `epoch`, counted from 1."""
        config = self._configs[network]
        factor = max(self._factor(config, epoch, passed), 0.0)
        if config.warmup:  # Goyal et al. 2017, section 2.2
            factor *= min(passed(parse_span(config.warmup)), 1.0)
        return factor

    def _factor(self, config: ScheduleConfig, epoch: int, passed: Passed) -> float:
        """Without warm-up. linear is 1 - max(0, e - n) / (n' + 1): n epochs held, n' epochs falling, e from 1."""
        past = epoch - 1
        match config.kind:
            case "linear":
                held = round(self.epochs * config.hold)
                return 1.0 - max(0, epoch - held) / (max(self.epochs - held, 0) + 1)
            case "step":
                falls = math.floor(passed(parse_span(config.every))) if config.every else past // _STEP
                return config.gamma**falls
            case "cosine":  # Loshchilov and Hutter 2017, eq. 5, one period, minimum 0
                return 0.5 * (1 + math.cos(math.pi * min(past / self.epochs, 1.0)))
            case "exponential":
                assert config.every is not None  # `check_schedule` asks for it
                return config.gamma ** passed(parse_span(config.every))
            case "constant":
                return 1.0

    def apply(self, epoch: int, passed: Passed) -> None:
        """Set every group's learning rate for an epoch of the schedule, counted from 1, and a step in it."""
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                rate = group["initial_lr"] * self.factor(group["name"], epoch, passed)
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate
