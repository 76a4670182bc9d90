"""Flags that change fields of a configuration, and the resulting configuration."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ValidationError
from tyro.conf import Positional, arg

from velogan.cli.flags import DEVICE, Argument, Flags, Json, requests_help, show_help
from velogan.cli.unknown_flags import SHORT_FLAGS
from velogan.config import SIZES, Config, Size, explain, field_names, read_config
from velogan.files import did_you_mean, parse_yaml
from velogan.recipes import DEFAULT, DEMOS, RECIPES
from velogan.search.method import METHODS

if TYPE_CHECKING:
    Preset = str
else:
    Preset = Literal[tuple(RECIPES)]

Overrides = Annotated[
    tuple[str, ...],
    arg(
        help="Fields that differ for the network of direction B to A: --generator-b channels=32.",
        metavar="FIELD=VALUE",
    ),
]

_SECTIONS = [name for name in Config.model_fields if not name.endswith("_b")]


@dataclass(kw_only=True)
class ConfigFlags(Flags):
    """A command with a flag for each field of a configuration, and short flags for the frequent ones."""

    data: Annotated[
        tuple[str, ...],
        arg(
            help="Training images: a folder with trainA and trainB, two folders, or apples2oranges.",
            metavar="PATH [PATH]",
        ),
    ] = ()
    config: Annotated[
        Path | None, arg(help="Read the fields from this YAML file or run folder instead of a preset.", metavar="PATH")
    ] = None
    method: Annotated[
        str | None,
        arg(help="Training method; its fields are --method.FIELD. Default: the preset's.", metavar="|".join(METHODS)),
    ] = None
    size: Annotated[
        Size | None, arg(help="Width and depth of the networks, from xs to l (the paper's). Default: the preset's.")
    ] = None
    image_size: Annotated[
        int | None,
        arg(
            help="Height and width of training crops in pixels (data.crop_size). Default: the preset's.",
            metavar="PIXELS",
        ),
    ] = None
    seed: Annotated[int | None, arg(help="Random seed of the run.")] = None
    device: Annotated[str | None, DEVICE] = None
    generator_b: Overrides = ()
    discriminator_b: Overrides = ()
    json: Json = False
    fields: Annotated[Config, arg(name="")]

    @classmethod
    def resolve_preset(cls, argv: Sequence[str]) -> str:
        """Return the preset that a command line names as its first word, or else the default preset."""
        return find_preset(argv) or DEFAULT

    @classmethod
    def base_config(cls, argv: Sequence[str]) -> Config:
        """Return the configuration whose values are the defaults of the field flags in `argv`."""
        return build_base_config(argv, cls.resolve_preset(argv))

    @classmethod
    def arguments(cls, argv: Sequence[str] = ("--help-all",)) -> list[Argument]:
        """Return the arguments that help shows; for --help SECTION the fields of that section of the configuration."""
        base = cls.base_config(argv)
        if "--help-all" in argv:
            own = [argument for argument in super().arguments(argv) if argument[0] != "fields"]
            return own + list(_field_arguments(base))
        section = next((word for flag, word in pairwise(argv) if flag in ("--help", "-h")), None)
        if section is None:
            return super().arguments(argv)
        if section not in _SECTIONS:
            raise ValueError(
                f"--help {section}: unknown section{did_you_mean(section, _SECTIONS)}; there are {', '.join(_SECTIONS)}"
            )
        return [argument for argument in _field_arguments(base) if argument[0].startswith(f"{section}.")]

    @classmethod
    def flags(cls) -> list[str]:
        """Return all flags, including one for each field of every method."""
        fields = [f"--{name.replace('_', '-')}" for name in field_names(Config)]
        return list(dict.fromkeys([*super().flags(), *fields]))

    @classmethod
    def parse(cls, argv: Sequence[str], *, prog: str, description: str) -> Self:
        """Parse the flags. Raises ValueError if a flag or the value of a field is wrong."""
        for short, field in SHORT_FLAGS.items():
            long = f"--{field.replace('_', '-')}"
            if value_of(argv, short) is not None and value_of(argv, long) is not None:
                raise ValueError(f"{short} and {long} set the same field: give one of the two")
        base = cls.base_config(argv)
        if requests_help(argv):
            description += (
                "\n\nEvery field of the configuration is also a flag, such as --data.preprocess crop: --help SECTION "
                f"shows those of {', '.join(_SECTIONS)}; --help-all shows all flags."
            )
            show_help(cls.arguments(argv), prog=prog, description=description)
        default: Any = {"fields": base}  # all other fields of subclasses have defaults
        try:
            return cls.parse_with_tyro(
                normalize_switches(argv, base), prog=prog, description=description, default=cls(**default)
            )
        except ValueError as error:
            if invalid := _find_validation_error(error):
                section = _section_of_class(invalid.title)
                raise ValueError(explain(invalid, source="the flags", section=section)) from None
            raise


def _field_arguments(section: BaseModel, prefix: str = "") -> Iterator[Argument]:
    """Yield an argument for each field of a section and of its subsections; the default is the field's value."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _field_arguments(value, f"{prefix}{name}.")
        elif not isinstance(value, dict):  # the overrides of B to A have flags of their own
            metavar = "true|false" if isinstance(value, bool) else None
            hint = Annotated[field.annotation, arg(help=field.description, metavar=metavar)]
            yield f"{prefix}{name}", hint, value


PresetFlag = Annotated[
    Positional[Preset], arg(help=f"Named configuration to start from: {', '.join(RECIPES)}.", metavar="PRESET")
]


@dataclass(kw_only=True)
class PresetFlags(ConfigFlags):
    """A command with one preset and the flags that change its fields."""

    preset: PresetFlag = DEFAULT

    @classmethod
    def parse(cls, argv: Sequence[str], *, prog: str, description: str) -> Self:
        """Parse the flags; take the preset from the command line's first word."""
        command = super().parse(argv, prog=prog, description=description)
        if not find_preset(argv) and command.preset != cls.preset:
            raise ValueError(f"{command.preset}: a preset comes before all flags: {prog} {command.preset} ...")
        command.preset = cls.resolve_preset(argv)
        return command


def find_preset(argv: Sequence[str]) -> str:
    """Return the first word of a command line if it is not a flag, else an empty string."""
    return argv[0] if argv and not argv[0].startswith("-") else ""


def build_base_config(argv: Sequence[str], preset: str) -> Config:
    """Return the configuration of --config or the preset with --image-size, --method and --size, but no field flags."""
    base, method = load_file_or_preset(argv, preset), value_of(argv, "--method")
    return apply_size(argv, base if method is None else base.change(method=method))


def apply_size(argv: Sequence[str], base: Config) -> Config:
    """Return `base` with the network sizes of --size, which depend on --generator.network."""
    size = value_of(argv, "--size")
    return base.with_size(size, network=value_of(argv, "--generator.network")) if size in SIZES else base


def load_file_or_preset(argv: Sequence[str], preset: str) -> Config:
    """Return the configuration of --config, or else of the preset, with the crop size of --image-size."""
    file, image_size = value_of(argv, "--config"), value_of(argv, "--image-size") or ""
    if file is not None and find_preset(argv) in RECIPES:
        raise ValueError(f"{find_preset(argv)} and --config {file} contradict each other: give one of the two")
    base = read_config(Path(file)) if file is not None else RECIPES.get(preset, RECIPES[DEFAULT])()
    return base.change(data={"crop_size": int(image_size)}) if image_size.isdecimal() and int(image_size) else base


def configure(command: ConfigFlags) -> Config:
    """Return the configuration that all flags of the command define."""
    train = {"seed": command.seed} if command.seed is not None else {}
    data: dict[str, Any] = {"path": command.data} if command.data else {}
    if command.image_size is not None:
        data["crop_size"] = command.image_size
    engine = {"device": command.device} if command.device is not None else {}
    overrides = {name: _parse_overrides(name, getattr(command, name)) for name in ("generator_b", "discriminator_b")}
    return command.fields.change(train=train, data=data, engine=engine, **overrides)


def _parse_overrides(section: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the fields and values of words such as `channels=32`. Raises ValueError if one has no `=`."""
    overrides = {}
    for word in words:
        field, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"--{section.replace('_', '-')} {word}: give FIELD=VALUE, such as channels=32")
        overrides[field] = parse_yaml(value)
    return overrides


def has_data(command: ConfigFlags, *presets: str) -> bool:
    """Return whether the flags or --config set the training images, or all presets include their own."""
    is_named = command.data or command.config is not None or command.fields.data.path != Config().data.path
    return bool(is_named) or all(preset in DEMOS for preset in presets)


def value_of(argv: Sequence[str], flag: str) -> str | None:
    """Return the value of a flag before the flags are parsed; None if it is missing."""
    result = None  # the last value counts, as in tyro
    for word, next_word in zip(argv, [*argv[1:], None]):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == flag:
            result = value if equals else next_word
    return result


def normalize_switches(argv: Sequence[str], base: Config) -> list[str]:
    """Replace `--data.rotate90 true` and `false` by `--data.rotate90` and `--data.no-rotate90`, which tyro reads."""
    switches = {
        f"--{section}.{name}".replace("_", "-"): (section, name)
        for section, fields in base.model_dump().items()
        if isinstance(fields, dict)
        for name, value in fields.items()
        if isinstance(value, bool)
    }
    flags: list[str] = []
    for word in (part for argument in argv for part in _split_switch(argument, switches)):
        previous = flags[-1].replace("_", "-") if flags else ""
        if previous in switches and word.lower() in ("true", "false"):
            section, name = switches[previous]
            flags[-1] = f"--{section}.{'' if word.lower() == 'true' else 'no-'}{name}".replace("_", "-")
        else:
            flags.append(word)
    return flags


def _split_switch(word: str, switches: Container[str]) -> list[str]:
    name, equals, value = word.partition("=")
    return [name, value] if equals and name.replace("_", "-") in switches else [word]


def _find_validation_error(error: BaseException | None) -> ValidationError | None:
    """Return the ValidationError among `error` and the exceptions that it was raised from, or None."""
    while error is not None and not isinstance(error, ValidationError):
        error = error.__context__
    return error


def _section_of_class(title: str) -> str:
    """Return the section of the class `title`: `train` for TrainConfig, empty for Config, else `method`."""
    sections = {getattr(field.annotation, "__name__", ""): name for name, field in Config.model_fields.items()}
    return "" if title == Config.__name__ else sections.get(title, "method")
