"""The flags that change a configuration's fields, and the configuration that they make."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, Self

import tyro
from pydantic import ValidationError

from velogan.cli.flags import Flags, Json, asks_help, show_help
from velogan.config import SIZES, Config, Size, explain, field_names, read_config
from velogan.files import nearest, parse_yaml
from velogan.recipes import DEFAULT, DEMOS, RECIPES
from velogan.search.method import METHODS

if TYPE_CHECKING:
    Preset = str
else:
    Preset = Literal[tuple(RECIPES)]

Overrides = Annotated[
    tuple[str, ...],
    tyro.conf.arg(
        help="Fields in which the network of direction B to A differs: --generator-b channels=32 blocks=6.",
        metavar="FIELD=VALUE",
    ),
]


@dataclass(kw_only=True)
class Fields(Flags):
    """What a configuration is made from, besides the preset."""

    data: Annotated[
        tuple[str, ...],
        tyro.conf.arg(
            help="A folder with trainA and trainB, or two folders, or apples2oranges.", metavar="PATH [PATH]"
        ),
    ] = ()
    config: Annotated[
        Path | None,
        tyro.conf.arg(help="Take the fields from this YAML file or run folder, not from a preset.", metavar="PATH"),
    ] = None
    method: Annotated[
        str | None,
        tyro.conf.arg(
            help="Another method than the preset's. Its fields are --method.FIELD.",
            metavar="|".join(METHODS),
        ),
    ] = None
    size: Annotated[
        Size | None,
        tyro.conf.arg(help="Width and depth of the networks, xs the smallest; l is the paper's.", metavar="xs|s|m|l"),
    ] = None
    image_size: Annotated[
        int | None,
        tyro.conf.arg(help="Side of the squares that the networks are trained on: data.crop_size.", metavar="PIXELS"),
    ] = None
    seed: Annotated[int | None, tyro.conf.arg(help="Every random choice follows from it.", metavar="NUMBER")] = None
    generator_b: Overrides = ()
    discriminator_b: Overrides = ()
    json: Json = False
    fields: Annotated[Config, tyro.conf.arg(name="")]

    @classmethod
    def preset_of(cls, argv: Sequence[str]) -> str:
        """The preset of a command line: its first word, or what the command takes where none is named."""
        return named_preset(argv) or DEFAULT

    @classmethod
    def base(cls, argv: Sequence[str]) -> Config:
        """What the flags `argv` change."""
        return base_config(argv, cls.preset_of(argv))

    @classmethod
    def flags(cls) -> list[str]:
        """As every command; those of the configuration are --SECTION.FIELD."""
        return [*super().flags(), *(f"--{name.replace('_', '-')}" for name in field_names(Config))]

    @classmethod
    def parse(cls, argv: Sequence[str], *, prog: str, description: str) -> Self:
        """As every command; ValueError where a field refuses its value."""
        for short, long in _SAME.items():
            if value_of(argv, short) is not None and value_of(argv, long) is not None:
                raise ValueError(f"{short} and {long} set the same field: give one of the two")
        base = cls.base(argv)
        if asks_help(argv):
            _show_help(cls, argv, base, prog=prog, description=description)
        default: Any = {"fields": base}  # all other fields of what derives from this have defaults
        try:
            return cls.parsed(plain_flags(argv, base), prog=prog, description=description, default=cls(**default))
        except ValueError as error:
            if refused := _refused(error):
                raise ValueError(explain(refused, source="the flags", section=_section(refused.title))) from None
            raise


def _show_help(command: type[Fields], argv: Sequence[str], base: Config, *, prog: str, description: str) -> NoReturn:
    """For --help the flags that come first, for --help SECTION those of the section, for --help-all all of them."""
    if "--help-all" in argv:
        show_help(command, prog=prog, description=description, defaults={"fields": base})
    behind = [word for flag, word in pairwise(argv) if flag in ("--help", "-h")]
    if behind:
        (section,) = behind
        if section not in Config.model_fields:
            known = list(Config.model_fields)
            raise ValueError(
                f"--help {section}: there is no such section{nearest(section, known)}; there are {', '.join(known)}"
            )
        value = getattr(base, section)
        flags = dataclasses.make_dataclass("Help", [(section, type(value), dataclasses.field(default=value))])
        description = f"The fields of the section {section}, with their values here."
        tyro.cli(flags, args=["--help"], prog=prog, description=description)
    description += (
        f"\n\nEvery field of a configuration is a flag too, like --data.preprocess crop: {prog} --help SECTION "
        f"explains those of {', '.join(Config.model_fields)}, and --help-all all flags."
    )
    show_help(command, command.FIRST, prog=prog, description=description)


PresetFlag = Annotated[
    tyro.conf.Positional[Preset],
    tyro.conf.arg(help=f"A named set of values for all fields: {', '.join(RECIPES)}.", metavar="PRESET"),
]


@dataclass(kw_only=True)
class Configured(Fields):
    """What one configuration is made from."""

    preset: PresetFlag = DEFAULT

    @classmethod
    def parse(cls, argv: Sequence[str], *, prog: str, description: str) -> Self:
        """Parse as every command does; take the preset from the command line's first word."""
        asked = super().parse(argv, prog=prog, description=description)
        if not named_preset(argv) and asked.preset != cls.preset:
            raise ValueError(f"{asked.preset}: a preset comes before all flags: {prog} {asked.preset} ...")
        asked.preset = cls.preset_of(argv)
        return asked


_SAME = {"--data": "--data.path", "--seed": "--train.seed", "--image-size": "--data.crop-size"}
"""Short flags, and the field that each sets."""


def named_preset(argv: Sequence[str]) -> str:
    """The preset that a command line names, as its first word; empty where it names none."""
    return argv[0] if argv and not argv[0].startswith("-") else ""


def base_config(argv: Sequence[str], preset: str) -> Config:
    """What the field flags change: the preset's configuration or that of --config, with --method and --size."""
    base, method = file_or_preset(argv, preset), value_of(argv, "--method")
    return sized(argv, base if method is None else base.change(method=method))


def sized(argv: Sequence[str], base: Config) -> Config:
    """`base` as --size has it, for the network that --generator.network asks for; field flags change that."""
    size = value_of(argv, "--size")
    return base.sized(size, network=value_of(argv, "--generator.network")) if size in SIZES else base


def file_or_preset(argv: Sequence[str], preset: str) -> Config:
    """The configuration of the file named by --config, or else the preset's; of --image-size, which others fit to."""
    file, side = value_of(argv, "--config"), value_of(argv, "--image-size") or ""
    if file is not None and named_preset(argv) in RECIPES:
        raise ValueError(f"{named_preset(argv)} and --config {file} contradict each other: give one of the two")
    base = read_config(Path(file)) if file is not None else RECIPES.get(preset, RECIPES[DEFAULT])()
    return base.change(data={"crop_size": int(side)}) if side.isdecimal() and int(side) else base


def configure(asked: Fields) -> Config:
    """The configuration that all these flags add up to."""
    train = {"seed": asked.seed} if asked.seed is not None else {}
    data: dict[str, Any] = {"path": asked.data} if asked.data else {}
    if asked.image_size is not None:
        data["crop_size"] = asked.image_size
    overrides = {name: _parse_overrides(name, getattr(asked, name)) for name in ("generator_b", "discriminator_b")}
    return asked.fields.change(train=train, data=data, **overrides)


def _parse_overrides(section: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the fields and values of words such as `channels=32`. Raises ValueError if one has no `=`."""
    overrides = {}
    for word in words:
        field, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"--{section.replace('_', '-')} {word}: give FIELD=VALUE, such as channels=32")
        overrides[field] = parse_yaml(value)
    return overrides


def data_is_named(asked: Fields, *presets: str) -> bool:
    """Whether somebody said which pictures to take, or the presets come with their own."""
    named = asked.data or asked.config is not None or asked.fields.data.path != Config().data.path
    return bool(named) or all(preset in DEMOS for preset in presets)


def value_of(argv: Sequence[str], flag: str) -> str | None:
    """What a flag is given, before all flags are parsed."""
    found = None  # the last one counts, as for all flags
    for word, behind in zip(argv, [*argv[1:], None]):
        name, given, value = word.partition("=")
        if name.replace("_", "-") == flag:
            found = value if given else behind
    return found


def plain_flags(argv: Sequence[str], base: Config) -> list[str]:
    """Lets `--data.rotate90 true` be written as well as `--data.rotate90` and `--data.no-rotate90`."""
    switches = {
        f"--{section}.{name}".replace("_", "-"): (section, name)
        for section, fields in base.model_dump().items()
        if isinstance(fields, dict)
        for name, value in fields.items()
        if isinstance(value, bool)
    }
    flags: list[str] = []
    for word in (part for given in argv for part in _split_switch(given, switches)):
        before = flags[-1].replace("_", "-") if flags else ""
        if before in switches and word.lower() in ("true", "false"):
            section, name = switches[before]
            flags[-1] = f"--{section}.{'' if word.lower() == 'true' else 'no-'}{name}".replace("_", "-")
        else:
            flags.append(word)
    return flags


def _split_switch(word: str, switches: Container[str]) -> list[str]:
    name, equals, value = word.partition("=")
    return [name, value] if equals and name.replace("_", "-") in switches else [word]


def _refused(error: BaseException | None) -> ValidationError | None:
    """The refusal of a field's value that an error goes back to."""
    while error is not None and not isinstance(error, ValidationError):
        error = error.__context__
    return error


def _section(title: str) -> str:
    """The section whose fields a class of this name has: `train` for TrainConfig; empty for all of them."""
    of = {getattr(field.annotation, "__name__", ""): name for name, field in Config.model_fields.items()}
    return "" if title == Config.__name__ else of.get(title, "method")
