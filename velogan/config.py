"""One run's whole configuration: the rooms' own configurations side by side, to and from YAML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from velogan.data.config import DataConfig
from velogan.engine.config import EngineConfig, TrainConfig
from velogan.engine.optimizers import OptimizerConfig, check_rules, check_schedule, trained
from velogan.engine.schedules import ScheduleConfig
from velogan.files import did_you_mean, parse_yaml
from velogan.methods import DEFAULT
from velogan.methods.base import Method, Spec, ends
from velogan.methods.capabilities import Remarks, TakesTerms, capability
from velogan.methods.fit import phases_of
from velogan.networks.cells import blocks_of
from velogan.networks.discriminators import DiscriminatorConfig
from velogan.networks.generators import GeneratorConfig
from velogan.networks.genotype import Genotype
from velogan.networks.sizes import matched, nearest_width, reference
from velogan.objectives.classes import SEGMENTER
from velogan.search.method import METHODS
from velogan.types import Decision, Direction

Size = Literal["xs", "s", "m", "l"]
SIZES: dict[Size, dict[str, int]] = {
    "xs": {"channels": 16, "blocks": 3, "discriminator": 32},
    "s": {"channels": 32, "blocks": 6, "discriminator": 32},
    "m": {"channels": 64, "blocks": 6, "discriminator": 64},
    "l": {"channels": 64, "blocks": 9, "discriminator": 64},
}
"""The one dial: generator width and residual blocks, discriminator width. `l` is the paper's."""

RESNET_ONLY_DEFAULTS = {
    name: GeneratorConfig.model_fields[name].default for name in ("decoder", "antialias", "padding", "dropout")
}
"""What cells have not, as it is where it says nothing."""

_MOST_YAML = 2**20  # bytes
_MOST_ERRORS = 20


def _parse_method(value: Any) -> Method:
    """The section `method`: its `kind` says which class the other fields are of; a word alone is a kind."""
    if isinstance(value, Method):
        return value
    tree = {"kind": value} if isinstance(value, str) else value
    if not isinstance(tree, Mapping):
        raise ValueError(f"{_shown(value, repr)} is no method: give a mapping with kind: {' or '.join(METHODS)}")
    kind = tree.get("kind", DEFAULT.kind)
    if not isinstance(kind, str) or kind not in METHODS:
        known = " and ".join(METHODS)
        raise ValueError(f"kind={_shown(kind, repr)} is no method, there are {known}{did_you_mean(str(kind), METHODS)}")
    return METHODS[kind].model_validate(tree)


Section = TypeVar("Section", bound=BaseModel)


def _parse_overrides(section: type[BaseModel], value: Any) -> Any:
    """Return the mapping `value` with each value converted to the type of its field in `section`."""
    if not isinstance(value, Mapping):
        return value
    parsed = {}
    for name, override in value.items():
        if name not in section.model_fields:
            raise ValueError(f"{name}: there is no such field{did_you_mean(str(name), section.model_fields)}")
        if override is not None:
            field = section.model_fields[name]
            adapter = TypeAdapter(Annotated[field.annotation, field])  # pyright: ignore
            try:
                parsed[name] = adapter.validate_python(override)
            except ValidationError as error:
                raise ValueError(f"{name}={override!r}: {_uncapitalized(error.errors()[0]['msg'])}") from None
    return parsed


def _override(section: Section, overrides: Mapping[str, Any], name: str) -> Section:
    """Return `section` with the fields of `overrides`. Raises ValueError if they do not fit."""
    try:
        return type(section).model_validate({**section.model_dump(), **overrides})
    except ValidationError as error:
        lines = "\n".join(f"{name}.{line}" for line in _wrong_fields(error))
        raise ValueError(lines) from None


class Config(BaseModel):
    """Everything a run is made of."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Annotated[SerializeAsAny[Method], BeforeValidator(_parse_method)] = DEFAULT
    train: TrainConfig = TrainConfig()
    data: DataConfig = DataConfig()
    generator: GeneratorConfig = GeneratorConfig()
    generator_b: Annotated[dict[str, Any], BeforeValidator(partial(_parse_overrides, GeneratorConfig))] = Field(
        default={}, description="Fields in which the generator from B to A differs from the section generator."
    )
    discriminator: DiscriminatorConfig = DiscriminatorConfig()
    discriminator_b: Annotated[dict[str, Any], BeforeValidator(partial(_parse_overrides, DiscriminatorConfig))] = Field(
        default={},
        description="Fields in which the discriminator of direction B to A differs from the section discriminator.",
    )
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    engine: EngineConfig = EngineConfig()

    @model_validator(mode="after")
    def _sections_fit(self) -> Config:
        self.method.check(self.spec)
        check_schedule(self.schedule, self.optimizer.rules)
        for field in ("masks_a", "masks_b", "labels_a", "labels_b"):
            if getattr(self.data, field) is not None:
                self._adds_terms(field)
        return self

    def _adds_terms(self, field: str) -> None:
        """ValueError where a run cannot have what `data.<field>` adds to a method's losses."""
        asked = f"data.{field}={getattr(self.data, field)}"
        if not isinstance(self.method, TakesTerms):
            can = " or ".join(name for name, method in METHODS.items() if isinstance(method(), TakesTerms))
            raise ValueError(f"{asked} is not for method={self.method.kind}: set method={can}, or leave it out")
        if self.train.exchange_every is not None:
            raise ValueError(
                f"{asked} needs all networks in one process, and train.exchange_every={self.train.exchange_every} "
                "divides them: leave one of the two out"
            )

    @property
    def spec(self) -> Spec:
        """What the networks shall be. ValueError where `generator_b` or `discriminator_b` does not fit the other."""
        generator = _override(self.generator, self.generator_b, "generator_b")
        discriminator = _override(self.discriminator, self.discriminator_b, "discriminator_b")
        a, b = self.data.channels_a or 3, self.data.channels_b or 3
        return Spec(
            generators={"a2b": self.generator.between(a, b), "b2a": generator.between(b, a)},
            discriminators={"a2b": self.discriminator, "b2a": discriminator},
            channels={"A": a, "B": b},
        )

    @property
    def images_per_update(self) -> int:
        """Images of each domain between two updates of a network."""
        return self.data.batch * self.train.accumulate

    def change(self, **sections: Any) -> Config:
        """A checked copy with fields replaced: `config.change(method="onepair", data={"crop_size": 64})`.

        A `method` of another kind begins from that kind's defaults.
        """
        tree = self.model_dump()
        for section, fields in sections.items():
            if section == "method" and isinstance(fields, str):
                fields = {"kind": fields}
            if not isinstance(fields, Mapping):
                raise ValueError(f"{section}={_shown(fields, repr)}: give a mapping of fields, {section}={{...}}")
            if section == "method" and fields.get("kind", self.method.kind) != self.method.kind:
                tree[section] = fields
            else:
                tree[section] = {**tree.get(section, {}), **fields}
        return parse_config(tree)

    def with_size(self, size: Size, *, network: str | None = None) -> Config:
        """With the widths and depth that `size` stands for; `network`: the generators', if they become others."""
        dial = SIZES[size]
        generator = {"channels": dial["channels"], "blocks": dial["blocks"]}
        if (
            network or self.generator.network
        ) == "cells":  # their channels are those of the encoding, their blocks are searched
            generator = {"channels": 4 * dial["channels"]}
        return self.change(generator=generator, discriminator={"channels": dial["discriminator"]})

    def with_genotype(
        self,
        genotype: Genotype,
        *,
        hidden: int | Mapping[Direction, int] | None = None,
        match: str | GeneratorConfig | None = None,
    ) -> Config:
        """With the networks of a genotype, whose encodings have `hidden` channels, or so many by direction.

        Without `hidden`, as many as the genotype says, or as the generators have now. With `match` (C64), the
        generators together have the bytes of two of CycleGAN's of that width, or of two such generators. What the
        genotype does not name stays as it is.
        """
        ways: list[Direction] = [way for way in self.method.directions if way in genotype.generators]
        first, last = ways[0], ways[-1]
        sections: dict[str, dict[str, Any]] = {}
        parts = {"generator": genotype.generators, "discriminator": genotype.discriminators}
        for section, chosen in parts.items():
            if first in chosen:
                other = chosen.get(last, chosen[first])
                sections[section] = {"network": "cells", "space": genotype.space, "operations": chosen[first]}
                differs = other if other != chosen[first] else None
                sections[f"{section}_b"] = {"network": None, "space": None, "operations": differs}
        blocks = [blocks_of(genotype.generators[way], genotype.space) for way in (first, last)]
        hidden = hidden or genotype.hidden or self.generator.encoding
        wide = [hidden[way] for way in (first, last)] if isinstance(hidden, Mapping) else [hidden]
        sections["generator"] |= {"blocks": blocks[0], **RESNET_ONLY_DEFAULTS}
        if "discriminator" in sections:
            sections["discriminator"] |= {"antialias": False}
        sections["generator_b"] |= {"blocks": blocks[1] if blocks[1] != blocks[0] else None}
        made = self.change(**sections)._with_widths(wide)
        if match is None:
            return made
        spec = made.spec
        channels = [(spec.channels[source], spec.channels[target]) for source, target in map(ends, ways)]
        goal = reference(match) if isinstance(match, str) else match
        return made._with_widths(matched([spec.generators[way] for way in ways], goal, channels=channels))

    def match_size_of(self, other: Config) -> Config:
        """With each generator as large as that of the same direction in `other`, by its width alone.

        Widths are whole numbers: sizes are as near as these allow. For a searched `other` this is C'64 of CycleGANAS,
        section 4.3: what unequal sizes are worth without a search.
        """
        spec, goal = self.spec, other.spec
        widths = []
        for way in self.method.directions:
            source, target = ends(way)
            channels = (spec.channels[source], spec.channels[target])
            widths.append(nearest_width(spec.generators[way], goal.generators[way], channels=channels))
        return self._with_widths(widths)

    def _with_widths(self, widths: Sequence[int]) -> Config:
        """With these `channels` of the generators, of the first and of the last direction."""
        first, last = widths[0], widths[-1]
        return self.change(generator={"channels": first}, generator_b={"channels": None if last == first else last})


def check_rules_match(config: Config) -> None:
    """Raise ValueError for a rule of the section optimizer that matches no network that is trained."""
    if config.optimizer.rules:
        more = [SEGMENTER] if config.data.labels_a or config.data.labels_b else []
        check_rules(config.optimizer, [*trained(phases_of(config.method, config.spec)), *more])


def fit_channels(config: Config, a: int, b: int) -> tuple[Config, list[Decision]]:
    """Return the configuration with the channels that pictures of A and of B have, and what follows from them."""
    config = config.change(data={"channels_a": a, "channels_b": b})
    remarks = capability(config.method, Remarks)
    return config, _by_channels(config) + (remarks.remarks(config.spec) if remarks else [])


def _by_channels(config: Config) -> list[Decision]:
    """What the configuration leaves to the channels of the pictures, and why it is so."""
    spec, found = config.spec, list[Decision]()
    a, b = spec.channels["A"], spec.channels["B"]
    if config.generator.output == "auto":
        why = "A and B have as many channels" if a == b else f"a mask keeps parts of the input: A has {a}, B {b}"
        found.append(Decision("generator.output", spec.generators["a2b"].output, why))
    if any(one.network.startswith("projected") for one in spec.discriminators.values()):
        for count in sorted({a, b} - {1, 3}):
            why = f"a network of photographs: each is the mean of a third of the {count}"
            found.append(Decision("discriminator.features", "see three channels", why))
    return found


def parse_config(tree: Mapping[str, Any], *, source: str = "the configuration") -> Config:
    """A Config from nested mappings. ValueError naming every wrong field, with the nearest valid name."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ValueError(explain(error, source=source)) from None


def read_config(path: Path | str) -> Config:
    """A Config from YAML, such as a run folder's config.yaml. ValueError where it does not fit."""
    path = Path(path)
    path = path / "config.yaml" if path.is_dir() else path
    if not path.is_file():
        raise ValueError(f"--config {path}: there is no such file; every run folder holds a config.yaml")
    try:
        if path.stat().st_size > _MOST_YAML:
            raise ValueError(f"it has {path.stat().st_size} bytes, not a few thousand")
        tree = parse_yaml(path.read_text(encoding="utf-8"))
        if not isinstance(tree, dict):
            raise ValueError("it must be a mapping with sections like data:")
    except ValueError as error:
        raise ValueError(f"--config {path} holds no configuration in plain YAML: {error}") from None
    return parse_config(tree, source=str(path))


def write_yaml(config: Config) -> str:
    """The configuration as YAML that `read_config` reads back equal."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def explain(error: ValidationError, *, source: str, section: str = "") -> str:
    """A validation error as one line per wrong field: its name, its value, and what to do.

    `section` is the one whose fields the error names, where it does not name the section itself.
    """
    return f"{source}: " + "\n".join(_wrong_fields(error, section))


def _wrong_fields(error: ValidationError, section: str = "") -> list[str]:
    lines, errors = [], error.errors()
    for item in errors[:_MOST_ERRORS]:
        name = ".".join([section] * bool(section) + [_shown(part) for part in item["loc"]])
        if item["type"] == "extra_forbidden":
            lines.append(f"{name}: there is no such field{did_you_mean(name, field_names(Config))}")
        elif item["type"] == "value_error":
            problem = str(item.get("ctx", {}).get("error", item["msg"]))
            value = item["input"]
            told = not isinstance(value, (str, int, float)) or str(value) in problem
            given = "" if told else f"={_shown(value, repr)}"
            lines.append(f"{name}{given}: {problem}" if name else problem)
        else:
            lines.append(f"{name}={_shown(item['input'], repr)}: {_uncapitalized(item['msg'])}")
    if len(errors) > _MOST_ERRORS:
        lines.append(f"and {len(errors) - _MOST_ERRORS} more")
    return lines


def _uncapitalized(message: str) -> str:
    return message[:1].lower() + message[1:]


def _shown(value: Any, form: Callable[[Any], str] = str) -> str:
    try:
        return form(value)[:80]
    except ValueError:  # Python does not write out numbers of thousands of digits
        return "a number of thousands of digits"


def field_names(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Dotted names of all fields; of `method`, those of every kind."""
    names = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Method):
            nested = "method." in prefix  # no method that wraps others is wrapped
            others = [method for method in METHODS.values() if not (nested and "inner" in method.model_fields)]
            of_kinds = [own for method in others for own in field_names(method, f"{prefix}{name}.")]
            names += list(dict.fromkeys([f"{prefix}{name}.kind", *of_kinds]))
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            names += field_names(kind, f"{prefix}{name}.")
        else:
            names.append(prefix + name)
    return names


def differences(asked: Config, saved: Config) -> dict[str, tuple[Any, Any]]:
    """Fields whose values differ, as (asked, saved); `auto` asks for nothing in particular."""
    found = {}
    for name in field_names(Config):
        mine, theirs = _get(asked, name), _get(saved, name)
        decided = name.startswith("engine.") or name in ("data.channels_a", "data.channels_b")
        if mine != theirs and not (decided and mine in ("auto", None)):
            found[name] = (mine, theirs)
    if "method.kind" in found:  # then their fields have nothing in common
        return {name: one for name, one in found.items() if name == "method.kind" or not name.startswith("method.")}
    return found


def _get(config: Config, name: str) -> Any:
    """A field's value; None for a field of another method."""
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part, None)
    return value
