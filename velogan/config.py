"""The complete configuration of a run, in sections, read from and written to YAML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from velogan.engine.optimizers import OptimizerConfig, check_rules, trained_roles
from velogan.engine.schedules import ScheduleConfig
from velogan.files import did_you_mean, parse_yaml
from velogan.methods import DEFAULT
from velogan.methods.base import Method, Spec
from velogan.methods.fit import check_sizes, phases_of
from velogan.methods.image_gan import ImageGAN
from velogan.networks.cells import count_blocks
from velogan.networks.discriminators import DiscriminatorConfig
from velogan.networks.generators import GeneratorConfig
from velogan.networks.genotype import Genotype
from velogan.networks.sizes import nearest_width, reference_config, widths_matching
from velogan.objectives.classes import SEGMENTER
from velogan.search.method import METHODS
from velogan.types import Decision, Direction, domains_of

Size = Literal["xs", "s", "m", "l"]
SIZES: dict[Size, dict[str, int]] = {
    "xs": {"channels": 16, "blocks": 3, "discriminator": 32},
    "s": {"channels": 32, "blocks": 6, "discriminator": 32},
    "m": {"channels": 64, "blocks": 6, "discriminator": 64},
    "l": {"channels": 64, "blocks": 9, "discriminator": 64},
}
"""Generator channels and blocks, and discriminator channels, by `--size`; `l` is the size in the CycleGAN paper."""

RESNET_ONLY_DEFAULTS = {
    name: GeneratorConfig.model_fields[name].default for name in ("decoder", "antialias", "padding", "dropout")
}
"""Generator fields that only ResNets have, with their defaults."""

_MAX_YAML = 2**20  # bytes
_MAX_ERRORS = 20


def _parse_method(value: Any) -> Method:
    """Return the method that `value` names by kind, or by fields (`kind` is optional)."""
    if isinstance(value, Method):
        return value
    tree = {"kind": value} if isinstance(value, str) else value
    if not isinstance(tree, Mapping):
        raise ValueError(f"{_shorten(value, repr)} is not a method: set a mapping with kind: {' or '.join(METHODS)}")
    kind = tree.get("kind", DEFAULT.kind)
    if not isinstance(kind, str) or kind not in METHODS:
        known = " or ".join(METHODS)
        raise ValueError(
            f"kind={_shorten(kind, repr)} is not a method: choose {known}{did_you_mean(str(kind), METHODS)}"
        )
    return METHODS[kind].model_validate(tree)


Section = TypeVar("Section", bound=BaseModel)


def _parse_overrides(section: type[BaseModel], value: Any) -> Any:
    """Convert the values of the mapping `value` to the types of `section`'s fields; leave out fields set to None."""
    if not isinstance(value, Mapping):
        return value
    parsed = {}
    for name, override in value.items():
        if name not in section.model_fields:
            hint = did_you_mean(str(name), section.model_fields) or f"; there are {', '.join(section.model_fields)}"
            raise ValueError(f"{name}: unknown field{hint}")
        if override is not None:
            field = section.model_fields[name]
            adapter = TypeAdapter(Annotated[field.annotation, field])  # pyright: ignore
            try:
                parsed[name] = adapter.validate_python(override)
            except ValidationError as error:
                raise ValueError(f"{name}={override!r}: {_uncapitalized(error.errors()[0]['msg'])}") from None
    return parsed


def _override(section: Section, overrides: Mapping[str, Any], name: str) -> Section:
    """Return `section` with the `overrides`. Raises ValueError, with names like `name.field`, if one is invalid."""
    try:
        return type(section).model_validate({**section.model_dump(), **overrides})
    except ValidationError as error:
        lines = "\n".join(f"{name}.{line}" for line in _describe_errors(error))
        raise ValueError(lines) from None


class Config(BaseModel):
    """The complete, immutable configuration of a run."""

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
    def _check_sections(self) -> Config:
        self.method.check(self.spec)
        for field in ("masks_a", "masks_b", "labels_a", "labels_b"):
            if getattr(self.data, field) is not None:
                self._check_annotation_support(field)
        return self

    def _check_annotation_support(self, field: str) -> None:
        """Raise ValueError if the run does not support the loss terms that `data.<field>` adds."""
        setting = f"data.{field}={getattr(self.data, field)}"
        if not isinstance(self.method, ImageGAN):
            supported = " or ".join(name for name, method in METHODS.items() if issubclass(method, ImageGAN))
            raise ValueError(
                f"{setting} is not supported by method={self.method.kind}: set method={supported} or remove it"
            )
        if self.train.exchange_every is not None:
            raise ValueError(
                f"{setting} needs all networks in one process, but train.exchange_every={self.train.exchange_every} "
                "distributes them: remove one of the two"
            )

    @property
    def spec(self) -> Spec:
        """The specification of all networks. Raises ValueError if `generator_b` or `discriminator_b` is invalid."""
        generator = _override(self.generator, self.generator_b, "generator_b")
        discriminator = _override(self.discriminator, self.discriminator_b, "discriminator_b")
        a, b = self.data.channels_a or 3, self.data.channels_b or 3
        return Spec(
            generators={"a2b": self.generator.resolve_output(a, b), "b2a": generator.resolve_output(b, a)},
            discriminators={"a2b": self.discriminator, "b2a": discriminator},
            channels={"A": a, "B": b},
        )

    @property
    def images_per_update(self) -> int:
        """The number of images per domain and optimizer update."""
        return self.data.batch * self.train.accumulate

    def change(self, **sections: Any) -> Config:
        """Return a validated copy with fields replaced: `config.change(method="onepair", data={"crop_size": 64})`.

        A `method` of another kind starts from that kind's defaults. Raises ValueError if a field is invalid.
        """
        tree = self.model_dump()
        for section, fields in sections.items():
            if section == "method" and isinstance(fields, str):
                fields = {"kind": fields}
            if not isinstance(fields, Mapping):
                raise ValueError(f"{section}={_shorten(fields, repr)}: set a mapping of fields, {section}={{...}}")
            if section == "method" and fields.get("kind", self.method.kind) != self.method.kind:
                tree[section] = fields
            else:
                tree[section] = {**tree.get(section, {}), **fields}
        return parse_config(tree)

    def with_size(self, size: Size, *, network: str | None = None) -> Config:
        """Return a copy with the channels and blocks of `size`, for generators of type `network` (None: unchanged)."""
        dimensions = SIZES[size]
        generator = {"channels": dimensions["channels"], "blocks": dimensions["blocks"]}
        if (network or self.generator.network) == "cells":  # channels of the encoding; the genotype sets the blocks
            generator = {"channels": 4 * dimensions["channels"]}
        return self.change(generator=generator, discriminator={"channels": dimensions["discriminator"]})

    def with_genotype(
        self,
        genotype: Genotype,
        *,
        hidden: int | Mapping[Direction, int] | None = None,
        match: str | GeneratorConfig | None = None,
    ) -> Config:
        """Return a copy with the networks of a genotype; networks that it does not contain are unchanged.

        `hidden`: channels of the encodings, one number or by direction; None: as in the genotype, else as configured.
        `match`: choose the channels so that the generators together have about as many parameters as ResNet-9s of this
        width ("C64"), or as generators with this configuration.
        """
        directions: list[Direction] = [name for name in self.method.directions if name in genotype.generators]
        first, last = directions[0], directions[-1]
        sections: dict[str, dict[str, Any]] = {}
        operations_of = {"generator": genotype.generators, "discriminator": genotype.discriminators}
        for section, operations in operations_of.items():
            if first in operations:
                last_operations = operations.get(last, operations[first])
                sections[section] = {"network": "cells", "space": genotype.space, "operations": operations[first]}
                override = last_operations if last_operations != operations[first] else None
                sections[f"{section}_b"] = {"network": None, "space": None, "operations": override}
        blocks = [count_blocks(genotype.generators[direction], genotype.space) for direction in (first, last)]
        hidden = hidden or genotype.hidden or self.generator.encoding_channels
        widths = [hidden[first], hidden[last]] if isinstance(hidden, Mapping) else [hidden]
        sections["generator"] |= {"blocks": blocks[0], **RESNET_ONLY_DEFAULTS}
        if "discriminator" in sections:
            sections["discriminator"] |= {"antialias": False}
        sections["generator_b"] |= {"blocks": blocks[1] if blocks[1] != blocks[0] else None}
        config = self.change(**sections)._with_widths(widths)
        if match is None:
            return config
        spec = config.spec
        channels = [(spec.channels[source], spec.channels[target]) for source, target in map(domains_of, directions)]
        size_target = reference_config(match) if isinstance(match, str) else match
        generators = [spec.generators[direction] for direction in directions]
        return config._with_widths(widths_matching(generators, size_target, channels=channels))

    def match_size_of(self, other: Config) -> Config:
        """Return a copy with widths that make each generator as large as its counterpart in `other`.

        Widths are integers, so sizes match approximately. If the networks of `other` are a genotype's, the copy is the
        baseline C'64 of CycleGANAS (section 4.3), which shows the effect of unequal sizes without a search.
        """
        spec, targets = self.spec, other.spec.generators
        widths = []
        for direction in self.method.directions:
            source, target = domains_of(direction)
            channels = (spec.channels[source], spec.channels[target])
            widths.append(nearest_width(spec.generators[direction], targets[direction], channels=channels))
        return self._with_widths(widths)

    def _with_widths(self, widths: Sequence[int]) -> Config:
        """Return a copy whose generators have these `channels`: from A to B `widths[0]`, from B to A `widths[-1]`."""
        first, last = widths[0], widths[-1]
        return self.change(generator={"channels": first}, generator_b={"channels": None if last == first else last})


def check_rules_match(config: Config) -> None:
    """Raise ValueError if one of the `optimizer.rules` changes no trained network."""
    if config.optimizer.rules:
        segmenters = [SEGMENTER] if config.data.labels_a or config.data.labels_b else []
        check_rules(config.optimizer, [*trained_roles(phases_of(config.method, config.spec)), *segmenters])


def fit_to_data(
    config: Config, channels: Sequence[int], shapes: Iterable[tuple[int, int]]
) -> tuple[Config, list[Decision]]:
    """Return `config` with the numbers of `channels` of A and B, and the decisions that depend on them.

    Raises ValueError if training images of one of the `shapes` (H, W) do not fit the networks.
    """
    config = config.change(data={"channels_a": channels[0], "channels_b": channels[1]})
    check_sizes(config.method, config.spec, shapes)
    return config, _channel_decisions(config) + config.method.decisions(config.spec)


def _channel_decisions(config: Config) -> list[Decision]:
    """Return the decisions on settings that depend on the number of channels."""
    spec, decisions = config.spec, list[Decision]()
    a, b = spec.channels["A"], spec.channels["B"]
    if config.generator.output == "auto":
        reason = "A and B have the same number of channels" if a == b else f"A has {a} channels and B {b}"
        decisions.append(Decision("generator.output", spec.generators["a2b"].output, reason))
    if any(discriminator.network.startswith("projected") for discriminator in spec.discriminators.values()):
        for count in sorted({a, b} - {1, 3}):
            reason = f"the pretrained network takes RGB: each channel is the mean of a third of the {count}"
            decisions.append(Decision("discriminator.features", "see three channels", reason))
    return decisions


def parse_config(tree: Mapping[str, Any], *, source: str = "the configuration") -> Config:
    """Return a Config from nested mappings. Raises ValueError with the invalid fields and similar valid names."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ValueError(explain(error, source=source)) from None


def read_config(path: Path | str) -> Config:
    """Return a Config from a YAML file or a run folder with a config.yaml. Raises ValueError if it is invalid."""
    path = Path(path)
    path = path / "config.yaml" if path.is_dir() else path
    if not path.is_file():
        raise ValueError(f"--config {path}: file not found; every run folder contains a config.yaml")
    try:
        if path.stat().st_size > _MAX_YAML:
            raise ValueError(f"it has {path.stat().st_size} bytes, not a few thousand")
        tree = parse_yaml(path.read_text(encoding="utf-8"))
        if not isinstance(tree, dict):
            raise ValueError("it must be a mapping with sections like data:")
    except ValueError as error:
        raise ValueError(f"--config {path} is not a configuration in plain YAML: {error}") from None
    return parse_config(tree, source=str(path))


def to_yaml(config: Config) -> str:
    """Return the configuration as YAML, from which `read_config` restores it."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def explain(error: ValidationError, *, source: str, section: str = "") -> str:
    """Return a validation error as text, a line per invalid field: its name, its value and the problem.

    `section`: prefix of the field names, if the class of a section raised the error instead of `Config`.
    """
    return f"{source}: " + "\n".join(_describe_errors(error, section))


def _describe_errors(error: ValidationError, section: str = "") -> list[str]:
    lines, errors = [], error.errors()
    for item in errors[:_MAX_ERRORS]:
        name = ".".join([section] * bool(section) + [_shorten(part) for part in item["loc"]])
        if item["type"] == "extra_forbidden":
            lines.append(f"{name}: unknown field{did_you_mean(name, field_names(Config))}")
        elif item["type"] == "value_error":
            problem = str(item.get("ctx", {}).get("error", item["msg"]))
            value = item["input"]
            is_value_needed = isinstance(value, (str, int, float)) and str(value) not in problem
            assignment = f"={_shorten(value, repr)}" if is_value_needed else ""
            lines.append(f"{name}{assignment}: {problem}" if name else problem)
        else:
            lines.append(f"{name}={_shorten(item['input'], repr)}: {_uncapitalized(item['msg'])}")
    if len(errors) > _MAX_ERRORS:
        lines.append(f"and {len(errors) - _MAX_ERRORS} more")
    return lines


def _uncapitalized(message: str) -> str:
    return message[:1].lower() + message[1:]


def _shorten(value: Any, to_text: Callable[[Any], str] = str) -> str:
    try:
        return to_text(value)[:80]
    except ValueError:  # Python does not write out numbers of thousands of digits
        return "a number of thousands of digits"


def field_names(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Return the dotted names of all fields; for `method`, the fields of every kind of method."""
    names = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Method):
            is_nested = "method." in prefix  # methods that wrap others cannot be wrapped
            methods = [method for method in METHODS.values() if not (is_nested and "inner" in method.model_fields)]
            method_names = [field for method in methods for field in field_names(method, f"{prefix}{name}.")]
            names += list(dict.fromkeys([f"{prefix}{name}.kind", *method_names]))
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            names += field_names(kind, f"{prefix}{name}.")
        else:
            names.append(prefix + name)
    return names


def differences(requested: Config, saved: Config) -> dict[str, tuple[Any, Any]]:
    """Return the fields whose values differ, as (requested, saved) by name, without requests for automatic values."""
    result = {}
    for name in field_names(Config):
        values = _field_value(requested, name), _field_value(saved, name)
        may_be_automatic = name.startswith("engine.") or name in ("data.channels_a", "data.channels_b")
        if values[0] != values[1] and not (may_be_automatic and values[0] in ("auto", None)):
            result[name] = values
    if "method.kind" in result:  # methods of different kinds have different fields
        result = {
            name: pair for name, pair in result.items() if name == "method.kind" or not name.startswith("method.")
        }
    return result


def _field_value(config: Config, name: str) -> Any:
    """Return a field's value by its dotted name; None if it belongs to another method."""
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part, None)
    return value
