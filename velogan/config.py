"""One run's whole configuration: the rooms' own configurations side by side, to and from YAML."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from velogan.data.config import DataConfig
from velogan.engine.config import EngineConfig, TrainConfig
from velogan.engine.optimizers import OptimizerConfig, ScheduleConfig
from velogan.networks.discriminators import DiscriminatorConfig
from velogan.networks.generators import GeneratorConfig
from velogan.objectives.cyclegan import CycleGANConfig

Size = Literal["xs", "s", "m", "l"]
SIZES: dict[Size, dict[str, int]] = {
    "xs": {"channels": 16, "blocks": 3, "judge": 32},
    "s": {"channels": 32, "blocks": 6, "judge": 32},
    "m": {"channels": 64, "blocks": 6, "judge": 64},
    "l": {"channels": 64, "blocks": 9, "judge": 64},
}
"""The one dial: generator width and residual blocks, discriminator width. `l` is the paper's."""


class Config(BaseModel):
    """Everything a run is made of."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    train: TrainConfig = TrainConfig()
    data: DataConfig = DataConfig()
    generator: GeneratorConfig = GeneratorConfig()
    discriminator: DiscriminatorConfig = DiscriminatorConfig()
    objective: CycleGANConfig = CycleGANConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    engine: EngineConfig = EngineConfig()

    def change(self, **sections: Mapping[str, Any]) -> Config:
        """A checked copy with fields replaced: `config.change(data={"crop_size": 64})`."""
        tree = self.model_dump()
        for section, fields in sections.items():
            tree[section] |= fields
        return parse_config(tree)

    def sized(self, size: Size) -> Config:
        """With the widths and depth that `size` stands for."""
        dial = SIZES[size]
        generator = {"channels": dial["channels"], "blocks": dial["blocks"]}
        return self.change(generator=generator, discriminator={"channels": dial["judge"]})


def parse_config(tree: Mapping[str, Any], *, source: str = "the configuration") -> Config:
    """A Config from nested mappings. ValueError naming every wrong field, with the nearest valid name."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ValueError(explain(error, source=source)) from None


def read_config(path: Path) -> Config:
    """A Config from YAML, such as a run folder's config.yaml. ValueError where it does not fit."""
    path = path / "config.yaml" if path.is_dir() else path
    if not path.is_file():
        raise ValueError(f"--config {path}: there is no such file; every run folder holds a config.yaml")
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"--config {path} is not YAML: {error}") from None
    if not isinstance(tree, dict):
        raise ValueError(f"--config {path} holds no configuration: it must be a mapping with sections like data:")
    return parse_config(tree, source=str(path))


def write_yaml(config: Config) -> str:
    """The configuration as YAML that `read_config` reads back equal."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def explain(error: ValidationError, *, source: str) -> str:
    """A validation error as one line per wrong field: its name, its value, and what to do."""
    lines = []
    for item in error.errors():
        name = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            lines.append(f"{name}: there is no such field{nearest(name, field_names(Config))}")
        elif item["type"] == "value_error":
            problem = str(item.get("ctx", {}).get("error", item["msg"]))
            lines.append(f"{name}: {problem}" if name else problem)
        else:
            shown = repr(item["input"])[:80]
            lines.append(f"{name}={shown}: {item['msg'][:1].lower()}{item['msg'][1:]}")
    return f"{source}: " + "\n".join(lines)


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean x?` for the valid name closest to `name`, or nothing."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def field_names(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Dotted names of all fields."""
    names = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            names += field_names(kind, f"{prefix}{name}.")
        else:
            names.append(prefix + name)
    return names


def differences(asked: Config, saved: Config) -> dict[str, tuple[Any, Any]]:
    """Fields whose values differ, as (asked, saved); `auto` asks for nothing in particular."""
    found = {}
    for name in field_names(Config):
        mine, theirs = _get(asked, name), _get(saved, name)
        if mine != theirs and not (name.startswith("engine.") and mine in ("auto", None)):
            found[name] = (mine, theirs)
    return found


def _get(config: Config, name: str) -> Any:
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value
