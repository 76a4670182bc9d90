"""What a sweep varies: one field with a list of values, or with a range that values are drawn from."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict

from velogan.config import METHODS, SIZES, Config, field_names
from velogan.engine.config import TrainConfig
from velogan.files import did_you_mean, parse_yaml

PRESET, SIZE = "preset", "size"
"""What can be varied besides the fields of a configuration."""

SCORED_EVERY = "10 %"
"""How often a trial is saved and scored, unless its preset or a flag says."""

RULES = "optimizer.rules"
"""A range within a rule, `G_A:lr=1e-5..1e-3`, is a dimension of its own: the field `optimizer.rules:G_A:lr`."""

_RANGE = re.compile(r"\s*([^\s,:]+?)\s*\.\.\s*([^\s,:]+)\s*(:log)?\s*")


class Dimension(BaseModel):
    """One thing that differs between trials: `values`, or numbers from `low` to `high`, even in their logarithm where
    `log`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    field: str
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False

    @property
    def is_range(self) -> bool:
        """Whether values are drawn from `low` to `high`."""
        return not self.values

    def draw(self, source: random.Random) -> Any:
        """A value at random, four digits of it."""
        if self.values:
            return source.choice(self.values)
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        number = source.uniform(low, high)
        return self.rounded(math.exp(number) if self.log else number)

    def rounded(self, number: float) -> float | int:
        """`number` with four digits, within the range: names of run folders stay readable."""
        number = min(max(float(f"{number:.4g}"), self.low), self.high)
        return round(number) if self.whole else number


def parse_dimension(text: str) -> Dimension:
    """`field=v1,v2` or `field=low..high` or `field=low..high:log`. ValueError names what is wrong, and the mend."""
    field, equals, given = text.partition("=")
    if not equals or not field.strip() or not given.strip():
        raise ValueError(f"--vary {text}: write field=value,value or field=low..high, like optimizer.lr=0.005,0.01")
    is_range = _RANGE.fullmatch(given.rpartition("=")[2])
    return make_dimension(field.strip(), given if is_range else split(given))


def make_dimension(field: str, given: Any) -> Dimension:
    """An axis from a plan file: a list of values, one value, or a text with a range."""
    check_field(field)
    if field == RULES and isinstance(given, str) and (found := _RANGE.fullmatch(given.rpartition("=")[2])):
        return _range(f"{RULES}:{given.rpartition('=')[0].strip()}", *found.groups())
    if isinstance(given, str) and (found := _RANGE.fullmatch(given)):
        return _range(field, *found.groups())
    values = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not values:
        raise ValueError(f"--vary {field}: name at least one value")
    return Dimension(field=field, values=values)


def check_field(field: str) -> None:
    """ValueError, with the mend, where trials cannot differ in `field`."""
    mends = {
        PRESET: "name several presets, in front of the flags or as presets: in a plan file",
        "train.seed": "say --seeds N",
        "train.length": "say --minutes or --images, equal for all trials",
        "train.patience": "all trials get the same budget; say --stop-early asha",
    }
    if field in mends:
        raise ValueError(f"{field}: this is no setting to vary; {mends[field]}")
    if field != SIZE and field not in (known := field_names(Config)):
        raise ValueError(f"{field}: there is no such field to vary{did_you_mean(field, [SIZE, *known])}")


def _range(field: str, low: str, high: str, log: str | None) -> Dimension:
    shown = f"--vary {field}={low}..{high}{log or ''}"
    try:
        bounds = float(low), float(high)
    except ValueError:
        raise ValueError(f"{shown}: a range is between two numbers, like 1e-5..1e-3:log") from None
    if not (all(map(math.isfinite, bounds)) and bounds[0] < bounds[1]):
        raise ValueError(f"{shown}: give two finite numbers, the smaller one first")
    if log and bounds[0] <= 0:
        raise ValueError(f"{shown}: a range on a logarithmic scale begins above 0")
    whole = field.replace("method.inner.", "method.") in whole_numbers()
    return Dimension(field=field, low=bounds[0], high=bounds[1], log=bool(log), whole=whole)


@cache
def whole_numbers() -> frozenset[str]:
    """The fields that hold whole numbers, by dotted name; of `method`, those that do so in each kind that has them."""
    found: dict[str, bool] = {}

    def look(model: type[BaseModel], prefix: str) -> None:
        for name, field in model.model_fields.items():
            kinds = get_args(field.annotation) or (field.annotation,)
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                look(field.annotation, f"{prefix}{name}.")
            else:
                found[prefix + name] = found.get(prefix + name, True) and int in kinds and float not in kinds

    look(Config, "")
    for method in METHODS.values():
        look(method, "method.")
    return frozenset(name for name, whole in found.items() if whole)


def split(text: str) -> list[Any]:
    """The values between commas; those within brackets belong together: `[1,2],[3,4]` is two lists."""
    parts = re.findall(r"(?:\[[^\]]*\]|\{[^}]*\}|[^,\[{])+", text)
    return [_value(part.strip()) for part in parts if part.strip()]


def _value(text: str) -> Any:
    """A list, a mapping or null as YAML reads it; else the text, which the field's own type makes a value of."""
    return parse_yaml(text) if text[:1] in ("[", "{") or text == "null" else text


def scored_at_shares(config: Config) -> Config:
    """Saved and scored at the same shares of every length, unless `config` says how often."""
    if config.train.checkpoint_every != TrainConfig().checkpoint_every:
        return config
    return config.change(train={"checkpoint_every": SCORED_EVERY})


def changed(config: Config, settings: Mapping[str, Any]) -> Config:
    """`config` with `settings` by dotted name; `preset` is not among them. ValueError names the field and the value."""
    if SIZE in settings:
        if settings[SIZE] not in SIZES:
            raise ValueError(f"size={settings[SIZE]}: there is no such size; choose {', '.join(SIZES)}")
        config = config.with_size(settings[SIZE])
    sections: dict[str, Any] = {}
    rules = [
        f"{name.removeprefix(RULES)[1:]}={value}" for name, value in settings.items() if name.startswith(f"{RULES}:")
    ]
    if rules:
        before = settings.get(RULES, config.optimizer.rules)
        sections["optimizer"] = {"rules": (*rules, *before)}  # the first rule that matches a network holds
    for name, value in settings.items():
        if name.startswith(RULES) and rules:
            continue
        section, _, field = name.partition(".")
        if name == "method.kind":
            config = config.change(method=str(value))
        elif field:
            sections.setdefault(section, {})[field] = value
    return config.change(**sections)
