"""The dimensions of a sweep: fields with a list of values, or with a range that values are sampled from."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict

from velogan.config import METHODS, SIZES, Config, field_names
from velogan.engine.config import TrainConfig
from velogan.files import did_you_mean, parse_yaml

PRESET, SIZE = "preset", "size"
"""Dimensions that are not fields of a configuration."""

RULES = "optimizer.rules"
"""A range within a rule, `G_A:lr=1e-5..1e-3`, is a dimension of its own: the field `optimizer.rules:G_A:lr`."""

_NOT_VARIED = (PRESET, "train.seed", "train.length", "train.patience")

_RANGE = re.compile(r"\s*([^\s,:]+?)\s*\.\.\s*([^\s,:]+)\s*(:log)?\s*")


class Dimension(BaseModel):
    """A field in which trials differ, with its `values` or a range from `low` to `high`.

    log: whether to sample the logarithm uniformly
    integer: whether the field takes integers only
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    field: str
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    integer: bool = False

    @property
    def is_range(self) -> bool:
        """Whether values are sampled from `low` to `high`."""
        return not self.values

    def sample(self, rng: random.Random) -> Any:
        """Draw one of `values`, or a number from the range."""
        if self.values:
            return rng.choice(self.values)
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        number = rng.uniform(low, high)
        return self.round(math.exp(number) if self.log else number)

    def round(self, number: Any) -> Any:
        """Round a sampled number to 4 significant digits, for short folder names; leave one of `values` as it is."""
        if not self.is_range:
            return number
        number = min(max(float(f"{number:.4g}"), self.low), self.high)
        return round(number) if self.integer else number


def parse_dimension(text: str) -> Dimension:
    """Parse `field=v1,v2` or `field=low..high` or `field=low..high:log`. Raises ValueError if `text` is invalid."""
    field, equals, value = text.partition("=")
    if not equals or not field.strip() or not value.strip():
        raise ValueError(f"--vary {text}: write field=value,value or field=low..high, such as optimizer.lr=0.005,0.01")
    dimension = make_dimension(field.strip(), value)
    return dimension if dimension.is_range else make_dimension(field.strip(), _split(value))


def make_dimension(field: str, value: Any) -> Dimension:
    """Build a dimension of `field` from a list, a single value, or text with a range. Raises ValueError if invalid."""
    check_field(field)
    if isinstance(value, str):
        rule, equals, text = value.rpartition("=") if field == RULES else ("", "", value)
        if match := _RANGE.fullmatch(text):
            return _parse_range(f"{field}:{rule.strip()}" if equals else field, *match.groups())
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not values:
        raise ValueError(f"--vary {field}: give at least one value")
    return Dimension(field=field, values=values)


def check_field(field: str) -> None:
    """Raise ValueError if trials cannot differ in `field`."""
    if field in _NOT_VARIED:
        raise ValueError(
            f"{field} cannot be varied: use several presets, --seeds N, --minutes or --images, or --stop-early asha"
        )
    if field != SIZE and field not in (known := field_names(Config)):
        raise ValueError(f"{field}: there is no such field to vary{did_you_mean(field, [SIZE, *known])}")


def _parse_range(field: str, low: str, high: str, log: str | None) -> Dimension:
    text = f"--vary {field}={low}..{high}{log or ''}"
    try:
        bounds = float(low), float(high)
    except ValueError:
        raise ValueError(f"{text}: give two numbers, such as 1e-5..1e-3:log") from None
    if not -math.inf < bounds[0] < bounds[1] < math.inf:
        raise ValueError(f"{text}: give two finite numbers, the smaller one first")
    if log and bounds[0] <= 0:
        raise ValueError(f"{text}: a logarithmic range must start above 0")
    return Dimension(field=field, low=bounds[0], high=bounds[1], log=bool(log), integer=_takes_integers(field))


def _takes_integers(field: str) -> bool:
    """Return whether a field takes only integers; a field of `method` must do so in every method that has it."""
    section, _, name = field.rpartition(".")
    models: Iterable[Any] = [getattr(Config.model_fields.get(section), "annotation", Config)]
    models = METHODS.values() if section.startswith("method") else models
    fields = [model.model_fields[name] for model in models if name in model.model_fields]
    types = [get_args(info.annotation) or (info.annotation,) for info in fields]
    return bool(types) and all(int in options and float not in options for options in types)


def _split(text: str) -> list[Any]:
    """Split `text` at commas outside brackets, and parse lists, mappings and null as YAML."""
    parts = [part.strip() for part in re.findall(r"(?:\[[^\]]*\]|\{[^}]*\}|[^,\[{])+", text)]
    return [parse_yaml(part) if part[0] in "[{" or part == "null" else part for part in parts if part]


def with_percent_checkpoints(config: Config) -> Config:
    """Return `config` with a checkpoint every 10 % of its length, unless it sets `train.checkpoint_every`."""
    is_default = config.train.checkpoint_every == TrainConfig().checkpoint_every
    return config.change(train={"checkpoint_every": "10 %"}) if is_default else config


def apply_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """Return `config` with the values of `settings`, by dotted name. Raises ValueError if a value is invalid."""
    if (size := settings.get(SIZE)) is not None:
        if size not in SIZES:
            raise ValueError(f"size={size}: there is no such size; choose from {', '.join(SIZES)}")
        config = config.with_size(size)
    rules = {name.removeprefix(f"{RULES}:"): value for name, value in settings.items() if name.startswith(f"{RULES}:")}
    sections: dict[str, Any] = {}
    for name, value in settings.items():
        section, _, field = name.partition(".")
        if name == "method.kind":
            config = config.change(method=str(value))
        elif field and not name.startswith(f"{RULES}:"):
            sections.setdefault(section, {})[field] = value
    if rules:  # they come first, because the first rule that matches a network applies
        others = settings.get(RULES, config.optimizer.rules)
        optimizer = sections.setdefault("optimizer", {})
        optimizer["rules"] = (*(f"{rule}={value}" for rule, value in rules.items()), *others)
    return config.change(**sections)
