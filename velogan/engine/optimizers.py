"""Optimizers as rules over networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from torch import nn

from velogan.engine.schedules import ScheduleConfig
from velogan.files import did_you_mean
from velogan.objectives.base import Phase

Kind = Literal["adam", "adamw", "radam", "sgd", "rmsprop"]


class OptimizerConfig(BaseModel):
    """How networks are updated: by one optimizer for each phase and kind, with a parameter group per network."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind = Field(
        default="adam", description="Adam, AdamW (weight decay apart from the gradient), RAdam, SGD or RMSprop."
    )
    lr: float = Field(default=2e-4, gt=0, description="Learning rate before the schedule.")
    beta1: float = Field(
        default=0.5, ge=0, lt=1, description="Decay of the gradient's running mean, of adam, adamw and radam."
    )
    beta2: float = Field(
        default=0.999, ge=0, lt=1, description="Decay of the squared gradient's running mean, of all but sgd."
    )
    epsilon: float = Field(
        default=1e-8,
        ge=0,
        description="Added to the root of the squared gradient's mean, of all but sgd. PyTorch's is 1e-8, Keras' 1e-7.",
    )
    momentum: float = Field(default=0.0, ge=0, lt=1, description="Momentum of sgd and rmsprop.")
    weight_decay: float = Field(default=0.0, ge=0, description="Pull of the weights towards 0.")
    clip_norm: float | None = Field(
        default=None, gt=0, description="The largest norm of a network's gradient; a longer one is scaled down to it."
    )
    rules: tuple[str, ...] = Field(
        default=(),
        description="Exceptions for networks by name, first match wins: 'D_*:lr=1e-4' or 'G_A:kind=adamw,beta1=0.9'. "
        "Keys are the fields of this section and of the section schedule, whose kind is schedule=cosine here; none "
        "switches clipping or the warm-up off: 'D_*:clip_norm=none'.",
    )

    @field_validator("rules")
    @classmethod
    def _rules_parse(cls, rules: tuple[str, ...]) -> tuple[str, ...]:
        for rule in rules:
            _parse_rule(rule)
        return rules

    @property
    def kinds(self) -> set[Kind]:
        """Every kind that is asked for."""
        return {self.kind, *(_parse_rule(rule)[1].get("kind", self.kind) for rule in self.rules)}

    def group(self, network: str) -> tuple[Kind, dict[str, Any]]:
        """The kind for `network`, and the settings of its parameter group: the first rule that matches, over these."""
        matching = (rest for pattern, *rest in map(_parse_rule, self.rules) if fnmatchcase(network, pattern))
        changes, schedule = next(matching, ({}, {}))
        own = self.model_copy(update=changes)
        settings = {"lr": own.lr, "initial_lr": own.lr, "weight_decay": own.weight_decay}
        if own.kind == "rmsprop":
            settings |= {"alpha": own.beta2, "momentum": own.momentum, "eps": own.epsilon}
        elif own.kind == "sgd":
            settings |= {"momentum": own.momentum}
        else:
            settings |= {"betas": (own.beta1, own.beta2), "eps": own.epsilon}
        return own.kind, settings | {"clip_norm": own.clip_norm, "name": network, "schedule": schedule}


def check_schedule(schedule: ScheduleConfig, rules: Sequence[str]) -> None:
    """Raise ValueError if a schedule is exponential without span; `rules` change `schedule` for some networks."""
    changed = {f"optimizer.rules: '{rule}': schedule": _parse_rule(rule)[2] for rule in rules}
    for name, changes in {"schedule.kind": {}, **changed}.items():
        own = schedule.model_copy(update=changes)
        if own.kind == "exponential" and own.every is None:
            raise ValueError(
                f"{name}=exponential without every: give the span in which the rate becomes {own.gamma:g} times what "
                "it was (gamma), such as every='50 %'"
            )


def _parse_rule(rule: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The pattern of a rule, and what it changes of the section optimizer and of the section schedule."""
    pattern, _, rest = rule.partition(":")
    parts = [[word.strip() for word in part.split("=")] for part in rest.split(",")]
    if not pattern.strip() or not all(len(part) == 2 and all(part) for part in parts):
        raise ValueError(f"'{rule}' is no optimizer rule: write NETWORK:lr=1e-4, with more keys after commas")
    if twice := next((key for key, _ in parts if [one for one, _ in parts].count(key) > 1), None):
        raise ValueError(f"'{rule}': {twice} is there twice: name it once")
    of_optimizer = [name for name in OptimizerConfig.model_fields if name != "rules"]
    of_schedule = {"schedule" if name == "kind" else name: name for name in ScheduleConfig.model_fields}
    keys = [*of_optimizer, *of_schedule]
    for key, _ in parts:
        if key not in keys:
            hint = did_you_mean(key, keys) or f"; there are {', '.join(keys)}"
            raise ValueError(f"'{rule}': there is no {key} for a network{hint}")
    changes = _checked(rule, OptimizerConfig, {key: value for key, value in parts if key in of_optimizer})
    schedule = _checked(rule, ScheduleConfig, {of_schedule[key]: value for key, value in parts if key in of_schedule})
    return pattern.strip(), changes, schedule


_MAY_BE_NONE = ("clip_norm", "warmup", "every")


def _checked(rule: str, section: type[BaseModel], fields: dict[str, str]) -> dict[str, Any]:
    """Those `fields` of a section, in their types."""
    given = {key: None if value == "none" and key in _MAY_BE_NONE else value for key, value in fields.items()}
    try:
        return section.model_validate(given).model_dump(exclude_unset=True)
    except ValidationError as error:
        wrong = error.errors()[0]
        key = "schedule" if section is ScheduleConfig and wrong["loc"] == ("kind",) else wrong["loc"][0]
        why = wrong["msg"].removeprefix("Value error, ")
        raise ValueError(f"'{rule}': {key}={wrong['input']}: {why}") from None


_CLASSES: dict[Kind, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "radam": torch.optim.RAdam,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
}
FUSED: tuple[Kind, ...] = ("adam", "adamw", "sgd")
"""The kinds of which PyTorch has a form that updates all weights of a network in one kernel, and can be captured."""


def build_optimizers(
    config: OptimizerConfig, *, phases: Sequence[Phase], nets: Mapping[str, nn.Module], fused: bool
) -> dict[str, torch.optim.Optimizer]:
    """Build an optimizer for each phase and kind, as `optimizers_of` finds them.

    Separate optimizers or groups with equal settings compute bit for bit what one does. Raises ValueError if a rule is
    never used.
    """
    check_rules(config, trained(phases))
    made: dict[str, torch.optim.Optimizer] = {}
    for phase in phases:
        kinds: dict[Kind, list[dict[str, Any]]] = {}
        for role in phase.trains:
            kind, settings = config.group(role)
            kinds.setdefault(kind, []).append({"params": list(nets[role].parameters()), **settings})
        for kind, groups in kinds.items():
            name = phase.name if len(kinds) == 1 else f"{phase.name}/{kind}"
            made[name] = _build(kind, groups, fused=fused and kind in FUSED)
    return made


def trained(phases: Sequence[Phase]) -> list[str]:
    """Return the networks that `phases` train, each once."""
    return list(dict.fromkeys(role for phase in phases for role in phase.trains))


def optimizers_of(phase: Phase, optimizers: Mapping[str, torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
    """Return the optimizers of `phase`: the one of its name, or several `phase/kind`."""
    return [optimizer for name, optimizer in optimizers.items() if name.partition("/")[0] == phase.name]


def check_rules(config: OptimizerConfig, networks: Sequence[str]) -> None:
    """Raise `ValueError` for a rule that changes none of `networks`, the names of those that are trained."""
    free = list(networks)
    for rule in config.rules:
        pattern, _, _ = _parse_rule(rule)
        if not any(fnmatchcase(network, pattern) for network in free):
            matches = any(fnmatchcase(network, pattern) for network in networks)
            mend = "earlier rules take all that it matches: put it before them"
            why = mend if matches else f"no network that is trained has such a name, there are {', '.join(networks)}"
            raise ValueError(f"optimizer.rules: '{rule}' changes nothing: {why}")
        free = [network for network in free if not fnmatchcase(network, pattern)]


def _build(kind: Kind, groups: list[dict[str, Any]], *, fused: bool) -> torch.optim.Optimizer:
    optimizer = _CLASSES[kind](groups, **({"fused": True} if fused else {}))
    if any(group["clip_norm"] for group in groups):
        optimizer.register_step_pre_hook(_clip)
    if fused and kind == "sgd":
        optimizer.register_step_pre_hook(_momentum_for_all)
    if fused and all(p.device.type == "cpu" for group in groups for p in group["params"]):
        optimizer.register_step_pre_hook(_gradients_like_weights)
        if kind != "sgd":  # whose momentum is laid out like the first gradients, with strides and all
            optimizer.register_step_pre_hook(_gradients_by_memory)
            optimizer.register_step_post_hook(_gradients_by_channels)
    return optimizer


def _clip(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Clip gradients, network by network, without waiting for the device."""
    for group in optimizer.param_groups:
        if group["clip_norm"]:  # Pascanu et al. 2013, algorithm 1
            nn.utils.clip_grad_norm_(group["params"], group["clip_norm"])


def _momentum_for_all(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Initialise momentum with zeros: torch's fused kernel fails where a weight has its first gradient after others."""
    for group in optimizer.param_groups:
        for weight in group["params"] if group["momentum"] else ():
            if weight.grad is not None and "momentum_buffer" not in optimizer.state[weight]:
                optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)


def _gradients_like_weights(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Lay gradients out like their weights: torch's fused CPU kernels walk all tensors in memory order."""
    for weight in _laid_out_weights(optimizer):
        assert weight.grad is not None
        if weight.grad.stride() != weight.stride():
            weight.grad = torch.empty_like(weight).copy_(weight.grad)


def _gradients_by_memory(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Give gradients contiguous strides over their channels-last memory, which saves a copy of each.

    Before the kernel walks them, it makes a contiguous copy of each gradient, which it never reads.
    """
    for weight in _laid_out_weights(optimizer):
        assert weight.grad is not None
        weight.grad = weight.grad.as_strided(weight.shape, torch.empty(weight.shape, device="meta").stride())


def _gradients_by_channels(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Give gradients the strides of their weights again."""
    for weight in _laid_out_weights(optimizer):
        assert weight.grad is not None
        weight.grad = weight.grad.as_strided(weight.shape, weight.stride())


def _laid_out_weights(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    return [weight for weight in weights if weight.grad is not None and not weight.is_contiguous()]


def make_capturable(optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
    """Prepare fused optimizers for capture: learning rates become tensors beside the weights, read at every update."""
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), dtype=torch.float32, device=group["params"][0].device)
            group["capturable"] = True


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return moments and settings, the same whether the optimizer is captured or not."""
    state = optimizer.state_dict()
    groups = [{**group, "lr": float(group["lr"]), "capturable": False} for group in state["param_groups"]]
    return {"state": state["state"], "param_groups": groups}


def load_optimizer_state(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Load the moments of `saved`; the optimizer keeps the settings it was built with."""
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
