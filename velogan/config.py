"""One run's whole configuration: the rooms' own configurations side by side, to and from YAML."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from velogan.data.config import DataConfig
from velogan.data.domains.sources import Letter
from velogan.data.pictures.values import Range
from velogan.engine.config import EngineConfig, TrainConfig
from velogan.engine.optimizers import OptimizerConfig, ScheduleConfig
from velogan.files import parse_yaml
from velogan.networks.discriminators import DiscriminatorConfig
from velogan.networks.generators import GeneratorConfig
from velogan.objectives.cyclegan import CycleGANConfig
from velogan.objectives.onepair import OnePairConfig

Size = Literal["xs", "s", "m", "l"]
SIZES: dict[Size, dict[str, int]] = {
    "xs": {"channels": 16, "blocks": 3, "discriminator": 32},
    "s": {"channels": 32, "blocks": 6, "discriminator": 32},
    "m": {"channels": 64, "blocks": 6, "discriminator": 64},
    "l": {"channels": 64, "blocks": 9, "discriminator": 64},
}
"""The one dial: generator width and residual blocks, discriminator width. `l` is the paper's."""

_MOST_YAML = 2**20  # bytes
_MOST_ERRORS = 20


class Reading(TypedDict):
    """Arguments of `data.cache.open_domain`."""

    channels: int | None
    value_range: Range | None


class Config(BaseModel):
    """Everything a run is made of."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Literal["cyclegan", "onepair"] = Field(
        default="cyclegan",
        description="cyclegan: two generators and two discriminators, by objective.*; onepair: an autoencoder, and a "
        "translator and a discriminator of its encodings, by onepair.*.",
    )
    train: TrainConfig = TrainConfig()
    data: DataConfig = DataConfig()
    generator: GeneratorConfig = GeneratorConfig()
    discriminator: DiscriminatorConfig = DiscriminatorConfig()
    objective: CycleGANConfig = CycleGANConfig()
    onepair: OnePairConfig = OnePairConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    engine: EngineConfig = EngineConfig()

    @model_validator(mode="after")
    def _one_method(self) -> Config:
        others: dict[str, tuple[str, BaseModel]] = {
            "onepair": ("cyclegan", self.objective),
            "cyclegan": ("onepair", self.onepair),
        }
        method, fields = others[self.method]
        section = "objective" if method == "cyclegan" else "onepair"
        for name, field in type(fields).model_fields.items():
            if (value := getattr(fields, name)) != field.default:
                raise ValueError(
                    f"{section}.{name}={value} is of method={method}, and this is method={self.method}: leave it out, "
                    f"or set method={method}"
                )
        if self.method == "onepair":
            self._fits_one_pair()
        return self

    def _fits_one_pair(self) -> None:
        generator, method = self.generator, self.onepair
        channels = generator.in_channels, generator.out_channels
        if generator.network != "resnet":
            raise ValueError(
                f"generator.network={generator.network} has no encoder, translator and decoder, which method=onepair "
                "needs: set generator.network=resnet"
            )
        if generator.blocks == 0 and method.stage != "autoencoder":
            raise ValueError("generator.blocks=0 leaves method=onepair no translator: set 1 or more")
        if None not in channels and channels[0] != channels[1]:
            raise ValueError(
                f"method=onepair has one autoencoder for both domains, but A has {channels[0]} channels and B "
                f"{channels[1]}: set generator.in_channels and generator.out_channels to the same number"
            )

    def change(self, **sections: Any) -> Config:
        """A checked copy with fields replaced: `config.change(method="onepair", data={"crop_size": 64})`."""
        tree = self.model_dump()
        for section, fields in sections.items():
            tree[section] = {**tree[section], **fields} if isinstance(fields, Mapping) else fields
        return parse_config(tree)

    def generator_for(self, role: str) -> GeneratorConfig:
        """The network of `G_A` (A to B) or `G_B`, whose channels are the other way round."""
        if role == "G_A":
            return self.generator
        swapped = {"in_channels": self.generator.out_channels, "out_channels": self.generator.in_channels}
        return self.generator.model_copy(update=swapped)

    def reading(self, letter: Letter) -> Reading:
        """How `data.cache.open_domain` shall read pictures of domain A or B."""
        if letter == "A":
            return {"channels": self.generator.in_channels, "value_range": self.data.range_a}
        return {"channels": self.generator.out_channels, "value_range": self.data.range_b}

    def sized(self, size: Size) -> Config:
        """With the widths and depth that `size` stands for."""
        dial = SIZES[size]
        generator = {"channels": dial["channels"], "blocks": dial["blocks"]}
        return self.change(generator=generator, discriminator={"channels": dial["discriminator"]})


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
    if path.stat().st_size > _MOST_YAML:
        raise ValueError(
            f"--config {path} holds no configuration: it has {path.stat().st_size} bytes, not a few thousand"
        )
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"--config {path} holds no configuration, since it is not plain YAML: {error}") from None
    if not isinstance(tree, dict):
        raise ValueError(f"--config {path} holds no configuration: it must be a mapping with sections like data:")
    return parse_config(tree, source=str(path))


def write_yaml(config: Config) -> str:
    """The configuration as YAML that `read_config` reads back equal."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def explain(error: ValidationError, *, source: str) -> str:
    """A validation error as one line per wrong field: its name, its value, and what to do."""
    lines, errors = [], error.errors()
    for item in errors[:_MOST_ERRORS]:
        name = ".".join(_shown(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            lines.append(f"{name}: there is no such field{nearest(name, field_names(Config))}")
        elif item["type"] == "value_error":
            problem = str(item.get("ctx", {}).get("error", item["msg"]))
            lines.append(f"{name}: {problem}" if name else problem)
        else:
            lines.append(f"{name}={_shown(item['input'], repr)}: {item['msg'][:1].lower()}{item['msg'][1:]}")
    if len(errors) > _MOST_ERRORS:
        lines.append(f"and {len(errors) - _MOST_ERRORS} more")
    return f"{source}: " + "\n".join(lines)


def _shown(value: Any, form: Callable[[Any], str] = str) -> str:
    try:
        return form(value)[:80]
    except ValueError:  # Python does not write out numbers of thousands of digits
        return "a number of thousands of digits"


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
        decided = name.startswith("engine.") or name in ("generator.in_channels", "generator.out_channels")
        if mine != theirs and not (decided and mine in ("auto", None)):
            found[name] = (mine, theirs)
    return found


def _get(config: Config, name: str) -> Any:
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value
