"""Learning-rate schedules, one for each network."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from velogan.engine.duration import Duration, Span, parse_span


class ScheduleConfig(BaseModel):
    """Section schedule. An epoch of the schedule is 1/200 of the run if its length is not in epochs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["linear", "step", "cosine", "exponential", "constant"] = Field(
        default="linear",
        description="linear: constant, then linear decay to nearly 0. step: multiplied by `gamma` after each interval "
        "`every`. cosine: half a cosine to 0. exponential: decays by `gamma` per interval `every`, at each step. "
        "constant.",
    )
    hold: float = Field(default=0.5, ge=0, le=1, description="linear: share of the run before the decay.")
    gamma: float = Field(default=0.1, gt=0, le=1, description="step and exponential: decay factor.")
    every: Duration | None = Field(
        default=None,
        description="step and exponential: interval of the decay by `gamma`, such as '10000 images'. Default: "
        "50 epochs of the schedule.",
    )
    warmup: Duration | None = Field(
        default=None, description="Linear warm-up from 0, multiplied with the schedule, such as '5 %'."
    )


SpanCounter = Callable[[Span], float]
"""Returns how many times a span has passed since the start of the run, fractions included."""

DECAY_EPOCHS = 50
"""Default of `every`, in epochs of the schedule; for step it is the reference implementation's."""


class Schedule:
    """Sets the learning rates of `optimizers` by `config`, with the changes that rules make for single networks.

    Rates change at the start of each epoch of the schedule; with a span (`every`, `warmup`) they change at each step.
    There is no state: a rate is a function of the progress of the run. `epochs`: length of the schedule.
    """

    def __init__(self, config: ScheduleConfig, optimizers: Mapping[str, torch.optim.Optimizer], *, epochs: float = 1):
        self.optimizers, self.epochs = optimizers, epochs
        groups = [group for optimizer in optimizers.values() for group in optimizer.param_groups]
        self._configs = {group["name"]: config.model_copy(update=group["schedule"]) for group in groups}

    def factor(self, network: str, epoch: int, count: SpanCounter) -> float:
        """Return the factor of the initial learning rate of `network` in `epoch`, counted from 1."""
        config, completed = self._configs[network], epoch - 1
        warmup = min(count(parse_span(config.warmup)), 1.0) if config.warmup else 1.0  # Goyal et al. 2017, section 2.2
        decays = count(parse_span(config.every)) if config.every else completed / DECAY_EPOCHS
        match config.kind:
            case "linear":  # with n constant and n' decaying epochs: 1 - max(0, epoch - n) / (n' + 1)
                constant = round(self.epochs * config.hold)
                return warmup * max(1.0 - max(0, epoch - constant) / (max(self.epochs - constant, 0) + 1), 0.0)
            case "cosine":  # Loshchilov and Hutter 2017, eq. 5, one period, minimum 0
                return warmup * 0.5 * (1 + math.cos(math.pi * min(completed / self.epochs, 1.0)))
            case "step":
                return warmup * config.gamma ** math.floor(decays)
            case "exponential":
                return warmup * config.gamma**decays
            case "constant":
                return warmup

    def apply(self, epoch: int, count: SpanCounter) -> None:
        """Set the learning rates of all parameter groups in `epoch` of the schedule, counted from 1."""
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                rate = group["initial_lr"] * self.factor(group["name"], epoch, count)
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate
