"""Optimizers as rules over networks, and their learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor, nn

from velogan.objectives.base import Phase


class OptimizerConfig(BaseModel):
    """Adam (Kingma and Ba 2015), one per phase with a parameter group per network."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lr: float = Field(default=2e-4, gt=0, description="Learning rate before the schedule.")
    beta1: float = Field(default=0.5, ge=0, lt=1, description="Decay of the gradient's running mean.")
    beta2: float = Field(default=0.999, ge=0, lt=1, description="Decay of the squared gradient's running mean.")
    rules: tuple[str, ...] = Field(
        default=(),
        description="Exceptions for networks by name, first match wins: 'D_*:lr=1e-4' or 'G_A:lr=1e-4,beta1=0.9'.",
    )

    @field_validator("rules")
    @classmethod
    def _rules_parse(cls, rules: tuple[str, ...]) -> tuple[str, ...]:
        for rule in rules:
            _parse_rule(rule)
        return rules

    def settings(self, network: str) -> dict[str, Any]:
        """Adam's arguments for `network`: the first rule that matches, over the common values."""
        values = {"lr": self.lr, "beta1": self.beta1, "beta2": self.beta2}
        for pattern, changed in map(_parse_rule, self.rules):
            if fnmatchcase(network, pattern):
                values |= changed
                break
        return {"lr": values["lr"], "betas": (values["beta1"], values["beta2"])}


def _parse_rule(rule: str) -> tuple[str, dict[str, float]]:
    pattern, colon, rest = rule.partition(":")
    try:
        values = {key.strip(): float(value) for key, value in (part.split("=") for part in rest.split(","))}
    except ValueError:
        values = {}
    if not colon or not values or set(values) - {"lr", "beta1", "beta2"}:
        raise ValueError(f"'{rule}' is no optimizer rule: write NETWORK:lr=1e-4 with lr, beta1 or beta2")
    return pattern.strip(), values


def build_optimizers(
    config: OptimizerConfig, *, phases: Sequence[Phase], nets: Mapping[str, nn.Module], fused: bool
) -> dict[str, torch.optim.Optimizer]:
    """An Adam per phase name. Separate Adams or groups with equal settings compute bit for bit what one does."""
    made: dict[str, torch.optim.Optimizer] = {}
    for phase in phases:
        groups = [
            {"params": list(nets[role].parameters()), "name": role, **config.settings(role)} for role in phase.trains
        ]
        made[phase.name] = torch.optim.Adam(groups, fused=True if fused else None)
        for group in made[phase.name].param_groups:
            group["initial_lr"] = group["lr"]
        if fused and all(p.device.type == "cpu" for group in groups for p in group["params"]):
            made[phase.name].register_step_pre_hook(_gradients_by_memory)
            made[phase.name].register_step_post_hook(_gradients_by_channels)
    return made


def _gradients_by_memory(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Gives gradients contiguous strides over their channels-last memory, which saves a copy of each.

    torch's fused CPU kernel walks weights, moments and gradients in memory order. But first it makes a contiguous copy
    of each gradient, which it never reads.
    """
    for weight in _laid_out_weights(optimizer):
        grad = weight.grad
        assert grad is not None
        if grad.stride() != weight.stride():
            grad = torch.empty_like(weight).copy_(grad)
        weight.grad = grad.as_strided(weight.shape, torch.empty(weight.shape, device="meta").stride())


def _gradients_by_channels(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Gives gradients the strides of their weights again."""
    for weight in _laid_out_weights(optimizer):
        assert weight.grad is not None
        weight.grad = weight.grad.as_strided(weight.shape, weight.stride())


def _laid_out_weights(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    return [weight for weight in weights if weight.grad is not None and not weight.is_contiguous()]


def make_capturable(optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
    """Lets fused Adams be captured: their learning rates become tensors beside the weights, read at every update."""
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), dtype=torch.float32, device=group["params"][0].device)
            group["capturable"] = True


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Moments and settings, the same whether the optimizer is captured or not."""
    state = optimizer.state_dict()
    groups = [{**group, "lr": float(group["lr"]), "capturable": False} for group in state["param_groups"]]
    return {"state": state["state"], "param_groups": groups}


def load_optimizer_state(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Takes the moments of `saved`; the optimizer keeps the settings that it was built with."""
    groups = optimizer.param_groups
    settings = [{name: value for name, value in group.items() if name != "params"} for group in groups]
    named = [{**mine, "params": theirs["params"]} for mine, theirs in zip(settings, saved["param_groups"], strict=True)]
    optimizer.load_state_dict({"state": saved["state"], "param_groups": named})
    for group, mine in zip(optimizer.param_groups, settings):
        group.update(mine)  # the same tensors as before: a captured step reads them
    for parameter, moments in optimizer.state.items():
        for name, value in moments.items():
            if torch.is_tensor(value) and value.shape == parameter.shape:
                # a fused kernel walks moments and parameter in memory order
                moments[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


class ScheduleConfig(BaseModel):
    """How the learning rate changes. An epoch here is 1/200 of the run if its length is not in epochs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["linear", "step", "plateau", "cosine", "exponential", "constant"] = Field(
        default="linear",
        description="linear: constant, then down to nearly 0; step: times `gamma` every `step_epochs`; plateau: times "
        "`gamma` when the generators' loss (the translators') has not improved for `patience` epochs; cosine: "
        "half a cosine to 0; "
        "exponential: times `gamma` an epoch; constant.",
    )
    hold: float = Field(default=0.5, ge=0, le=1, description="linear: share of the run before the rate starts to fall.")
    gamma: float = Field(default=0.1, gt=0, le=1, description="Factor of step, plateau and exponential.")
    step_epochs: int = Field(default=50, ge=1, description="step: epochs between falls.")
    patience: int = Field(default=5, ge=1, description="plateau: epochs without improvement.")
    threshold: float = Field(default=0.01, ge=0, description="plateau: relative improvement that counts.")


class Schedule:
    """The factor on every learning rate, set at the start of each epoch of the schedule.

    `epochs` is the run's length in such epochs; the trainer sets it.
    """

    def __init__(self, config: ScheduleConfig, *, epochs: float = 1):
        self.config = config
        self.epochs = epochs
        self.epoch = 1
        self._reduced = 1.0
        self._best: float | None = None
        self._waited = 0

    def factor(self, epoch: int) -> float:
        """The factor for `epoch`, from 1. linear is 1 - max(0, e - n) / (n' + 1): n epochs held, n' epochs falling."""
        config, past = self.config, epoch - 1
        match config.kind:
            case "linear":
                held = round(self.epochs * config.hold)
                return 1.0 - max(0, epoch - held) / (max(self.epochs - held, 0) + 1)
            case "step":
                return config.gamma ** (past // config.step_epochs)
            case "cosine":  # Loshchilov and Hutter 2017, eq. 5, one period, minimum 0
                return 0.5 * (1 + math.cos(math.pi * min(past / self.epochs, 1.0)))
            case "exponential":
                return config.gamma**past
            case "plateau":
                return self._reduced
            case "constant":
                return 1.0

    def finish_epoch(self, loss: float) -> None:
        """Moves to the next epoch; `loss` is the watched phase's mean over the last one (for plateau)."""
        self.epoch += 1
        if self.config.kind != "plateau":
            return
        if self._best is None or loss < self._best * (1 - math.copysign(self.config.threshold, self._best)):
            self._best, self._waited = loss, 0
        else:
            self._waited += 1
        if self._waited > self.config.patience:
            self._reduced, self._waited = self._reduced * self.config.gamma, 0

    def apply(self, optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        """Sets every group's learning rate for the current epoch."""
        factor = max(self.factor(self.epoch), 0.0)
        for optimizer in optimizers.values():
            for group in optimizer.param_groups:
                rate = group["initial_lr"] * factor
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "reduced": self._reduced, "best": self._best, "waited": self._waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch, self._reduced = state["epoch"], state["reduced"]
        self._best, self._waited = state["best"], state["waited"]
