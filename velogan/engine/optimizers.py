"""Optimizers of the networks, with rules that change settings for some of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from torch import Tensor, nn

from velogan.engine.schedules import ScheduleConfig
from velogan.files import did_you_mean
from velogan.objectives.base import Phase

Kind = Literal["adam", "adamw", "radam", "sgd", "rmsprop"]


class OptimizerConfig(BaseModel):
    """Section optimizer: one optimizer for each phase and kind, with a parameter group per network."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind = Field(default="adam", description="Adam, AdamW (decoupled weight decay), RAdam, SGD or RMSprop.")
    lr: float = Field(default=2e-4, gt=0, description="Learning rate before the schedule.")
    beta1: float = Field(default=0.5, ge=0, lt=1, description="adam, adamw, radam: decay of the gradient's mean.")
    beta2: float = Field(default=0.999, ge=0, lt=1, description="All but sgd: decay of the squared gradient's mean.")
    epsilon: float = Field(
        default=1e-8, ge=0, description="All but sgd: added to the root of the squared gradient's mean; Keras has 1e-7."
    )
    momentum: float = Field(default=0.0, ge=0, lt=1, description="sgd, rmsprop: momentum.")
    weight_decay: float = Field(default=0.0, ge=0, description="Weight decay.")
    clip_norm: float | None = Field(default=None, gt=0, description="Maximum norm of each network's gradient.")
    rules: tuple[str, ...] = Field(
        default=(),
        description="Settings for networks by name, first match wins: 'D_*:lr=1e-4' or 'G_A:kind=adamw,beta1=0.9'. "
        "Keys are the fields of this section and of the section schedule, whose kind is named schedule here; none "
        "disables clipping or the warm-up: 'D_*:clip_norm=none'.",
    )

    @field_validator("rules")
    @classmethod
    def _check_rules(cls, rules: tuple[str, ...]) -> tuple[str, ...]:
        for rule in rules:
            _parse_rule(rule)
        return rules

    @property
    def kinds(self) -> set[Kind]:
        """The kinds of optimizers in this section and its rules."""
        return {self.kind, *(_parse_rule(rule)[1].get("kind", self.kind) for rule in self.rules)}

    def parameter_group(self, network: str) -> tuple[Kind, dict[str, Any]]:
        """Return the optimizer kind and parameter-group settings of `network`, with the first matching rule applied."""
        matching = (rest for pattern, *rest in map(_parse_rule, self.rules) if fnmatchcase(network, pattern))
        changes, schedule = next(matching, ({}, {}))
        merged = self.model_copy(update=changes)
        settings = {"lr": merged.lr, "initial_lr": merged.lr, "weight_decay": merged.weight_decay}
        if merged.kind == "rmsprop":
            settings |= {"alpha": merged.beta2, "momentum": merged.momentum, "eps": merged.epsilon}
        elif merged.kind == "sgd":
            settings |= {"momentum": merged.momentum}
        else:
            settings |= {"betas": (merged.beta1, merged.beta2), "eps": merged.epsilon}
        return merged.kind, settings | {"clip_norm": merged.clip_norm, "name": network, "schedule": schedule}


def _parse_rule(rule: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return the pattern of a rule, and its changes to the sections optimizer and schedule."""
    pattern, _, rest = rule.partition(":")
    parts = [[word.strip() for word in part.split("=")] for part in rest.split(",")]
    if not pattern.strip() or not all(len(part) == 2 and all(part) for part in parts):
        raise ValueError(f"'{rule}' is not a rule: write NETWORK:lr=1e-4, with more keys after commas")
    values = dict[str, str](parts)
    if len(values) < len(parts):
        raise ValueError(f"'{rule}': a key is repeated; name each once")
    optimizer_keys = [name for name in OptimizerConfig.model_fields if name != "rules"]
    schedule_keys = {"schedule" if name == "kind" else name: name for name in ScheduleConfig.model_fields}
    keys = [*optimizer_keys, *schedule_keys]
    if unknown := next((key for key in values if key not in keys), None):
        hint = did_you_mean(unknown, keys) or f"; there are {', '.join(keys)}"
        raise ValueError(f"'{rule}': there is no {unknown} for a network{hint}")
    changes = _validate(rule, OptimizerConfig, {key: values[key] for key in values if key in optimizer_keys})
    schedule = _validate(
        rule, ScheduleConfig, {schedule_keys[key]: values[key] for key in values if key in schedule_keys}
    )
    return pattern.strip(), changes, schedule


_OPTIONAL = ("clip_norm", "warmup", "every")  # fields that a rule may set to none


def _validate(rule: str, section: type[BaseModel], fields: dict[str, str]) -> dict[str, Any]:
    """Return `fields` of a section with their texts converted to values. Raises ValueError if one is invalid."""
    fields_or_none = {key: None if value == "none" and key in _OPTIONAL else value for key, value in fields.items()}
    try:
        return section.model_validate(fields_or_none).model_dump(exclude_unset=True)
    except ValidationError as error:
        details = error.errors()[0]
        key = "schedule" if section is ScheduleConfig and details["loc"] == ("kind",) else details["loc"][0]
        reason = details["msg"].removeprefix("Value error, ")
        raise ValueError(f"'{rule}': {key}={details['input']}: {reason}") from None


_CLASSES: dict[Kind, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "radam": torch.optim.RAdam,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
}
FUSED: tuple[Kind, ...] = ("adam", "adamw", "sgd")
"""Kinds with fused kernels in PyTorch, which update all weights of a group at once; a CUDA graph can capture them."""


def build_optimizers(
    config: OptimizerConfig, *, phases: Sequence[Phase], nets: Mapping[str, nn.Module], fused: bool
) -> dict[str, torch.optim.Optimizer]:
    """Build an optimizer for each phase and kind, named as `optimizers_of` describes.

    Several optimizers or groups with equal settings compute bit for bit the same as one. Raises ValueError if a rule
    has no effect.
    """
    check_rules(config, trained_roles(phases))
    optimizers: dict[str, torch.optim.Optimizer] = {}
    for phase in phases:
        groups_by_kind: dict[Kind, list[dict[str, Any]]] = {}
        for role in phase.trains:
            kind, settings = config.parameter_group(role)
            groups_by_kind.setdefault(kind, []).append({"params": list(nets[role].parameters()), **settings})
        for kind, groups in groups_by_kind.items():
            name = phase.name if len(groups_by_kind) == 1 else f"{phase.name}/{kind}"
            optimizers[name] = _build_optimizer(kind, groups, fused=fused and kind in FUSED)
    return optimizers


def trained_roles(phases: Sequence[Phase]) -> list[str]:
    """Return the roles of the networks that `phases` train."""
    return list(dict.fromkeys(role for phase in phases for role in phase.trains))


def optimizers_of(phase: Phase, optimizers: Mapping[str, torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
    """Return the optimizers of `phase`: one with its name, or several named `phase/kind`."""
    return [optimizer for name, optimizer in optimizers.items() if name.partition("/")[0] == phase.name]


def check_rules(config: OptimizerConfig, networks: Sequence[str]) -> None:
    """Raise ValueError if a rule changes none of the trained `networks`."""
    remaining = list(networks)
    for rule in config.rules:
        pattern, _, _ = _parse_rule(rule)
        if not any(fnmatchcase(network, pattern) for network in remaining):
            raise ValueError(
                f"optimizer.rules: '{rule}' has no effect: it matches no trained network ({', '.join(networks)}), or "
                "only those of earlier rules; change the name, or move it to the front"
            )
        remaining = [network for network in remaining if not fnmatchcase(network, pattern)]


def _build_optimizer(kind: Kind, groups: list[dict[str, Any]], *, fused: bool) -> torch.optim.Optimizer:
    optimizer = _CLASSES[kind](groups, **({"fused": True} if fused else {}))
    if any(group["clip_norm"] for group in groups):
        optimizer.register_step_pre_hook(_clip_gradients)
    if fused and kind == "sgd":
        optimizer.register_step_pre_hook(_initialise_momentum)
    if fused and all(p.device.type == "cpu" for group in groups for p in group["params"]):
        optimizer.register_step_pre_hook(_match_memory_format)
        if kind != "sgd":  # the momentum of sgd takes the strides of the first gradients
            optimizer.register_step_pre_hook(_to_contiguous_strides)
            optimizer.register_step_post_hook(_to_weight_strides)
    return optimizer


def _clip_gradients(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Clip the gradients of each network by their norm, without waiting for the device."""
    for group in optimizer.param_groups:
        if group["clip_norm"]:  # Pascanu et al. 2013, algorithm 1
            nn.utils.clip_grad_norm_(group["params"], group["clip_norm"])


def _initialise_momentum(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Initialise momentum with zeros: torch's fused kernel fails if a weight gets its first gradient after others."""
    for group in optimizer.param_groups:
        for weight in group["params"] if group["momentum"] else ():
            if weight.grad is not None and "momentum_buffer" not in optimizer.state[weight]:
                optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)


def _match_memory_format(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Convert gradients to the memory format of their weights: torch's fused CPU kernels read both in memory order."""
    for weight, grad in _channels_last_gradients(optimizer):
        if grad.stride() != weight.stride():
            weight.grad = torch.empty_like(weight).copy_(grad)


def _to_contiguous_strides(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """View channels-last gradients as contiguous tensors over the same memory; else the fused kernel copies them."""
    for weight, grad in _channels_last_gradients(optimizer):
        weight.grad = grad.as_strided(weight.shape, torch.empty(weight.shape, device="meta").stride())


def _to_weight_strides(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Restore the strides that `_to_contiguous_strides` replaced."""
    for weight, grad in _channels_last_gradients(optimizer):
        weight.grad = grad.as_strided(weight.shape, weight.stride())


def _channels_last_gradients(optimizer: torch.optim.Optimizer) -> list[tuple[nn.Parameter, Tensor]]:
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    return [(weight, weight.grad) for weight in weights if weight.grad is not None and not weight.is_contiguous()]


def make_capturable(optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
    """Prepare fused optimizers for capture: learning rates become tensors on the device, read at every update."""
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), dtype=torch.float32, device=group["params"][0].device)
            group["capturable"] = True


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return an optimizer's `state_dict` as it would be without capture: learning rates are floats."""
    state = optimizer.state_dict()
    groups = [{**group, "lr": float(group["lr"]), "capturable": False} for group in state["param_groups"]]
    return {"state": state["state"], "param_groups": groups}


def load_optimizer_state(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Load the moments of `saved`, the result of `optimizer_state`; the optimizer keeps its settings."""
    groups = optimizer.param_groups
    settings = [{name: value for name, value in group.items() if name != "params"} for group in groups]
    saved_groups = saved["param_groups"]
    merged = [{**own, "params": group["params"]} for own, group in zip(settings, saved_groups, strict=True)]
    optimizer.load_state_dict({"state": saved["state"], "param_groups": merged})
    for group, own in zip(optimizer.param_groups, settings):
        group.update(own)  # the same tensors as before: a captured step reads them
    for parameter, moments in optimizer.state.items():
        for name, value in moments.items():
            if torch.is_tensor(value) and value.shape == parameter.shape:
                # a fused kernel reads moments and parameter in memory order
                moments[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
