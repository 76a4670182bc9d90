"""The base class of all commands: a dataclass whose fields are the flags, parsed by tyro."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Self, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.conf import Positional, arg

from velogan.cli.unknown_flags import check_flags, explain_unknown_flag
from velogan.files import did_you_mean

Json = Annotated[bool, arg(help="Print the result as one JSON object, the last line on stdout.")]

Model = Annotated[
    Positional[Path],
    arg(
        metavar="RUN|FILE",
        help="A run folder, a .safetensors or .pth file, hf://OWNER/NAME, or apples2oranges, which is in velogan.",
    ),
]
Weights = Annotated[
    Literal["ema", "raw"] | None,
    arg(help="ema: exponential moving average of the weights; raw: the weights themselves. Default: ema if saved."),
]
Checkpoint = Annotated[
    Literal["last", "best"] | None,
    arg(help="Checkpoint of a run: last, or best by held-out pictures. Default: last, or best if last is much worse."),
]

FP32 = "Compute in plain float32 instead of with the accelerated network, which differs by a few of 255 levels."
DEVICE = arg(help="Device to compute on: auto, cpu, cuda, cuda:1 or mps.")

Outcome = tuple[dict[str, Any], int]
"""The result of a command: the object that --json prints, and the exit code."""


Argument = tuple[str, Any, Any]
"""Name, annotated type and default value of a flag or a positional argument."""


class Flags(ABC):
    """A command with the values of its flags. Its help contains the class's docstring from the second paragraph on."""

    HELP_FLAGS: ClassVar[str] = ""
    """Names of the flags that --help shows, in this order, separated by spaces; empty: all."""

    json: bool

    started_at: ClassVar[float | None] = None
    """Start time of the command by `time.monotonic`, before its imports; set by `main`."""

    @classmethod
    def parse(cls, argv: Sequence[str], *, prog: str, description: str) -> Self:
        """Parse the flags, or print help and exit. Raises ValueError with one sentence if they are invalid."""
        if requests_help(argv):
            note = f"\n\nAll flags: {prog} --help-all." if cls.HELP_FLAGS else ""
            show_help(cls.arguments(argv), prog=prog, description=description + note)
        return cls.parse_with_tyro(argv, prog=prog, description=description)

    @classmethod
    def parse_with_tyro(cls, argv: Sequence[str], **options: Any) -> Self:
        """Parse the flags with tyro. Raises ValueError with tyro's error as one sentence."""
        check_flags(argv, cls.flags())
        output = StringIO()
        try:
            with redirect_stderr(output):
                return tyro.cli(cls, args=argv, **options)
        except SystemExit as end:
            raise ValueError(explain_parse_error(output.getvalue(), argv, flags=cls.flags())) from end

    @classmethod
    def arguments(cls, argv: Sequence[str] = ("--help-all",)) -> list[Argument]:
        """Return the arguments that help shows: those named in `HELP_FLAGS`, or all for --help-all."""
        hints = get_type_hints(cls, include_extras=True)
        fields: Any = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
        arguments = {field.name: (field.name, hints[field.name], field.default) for field in fields}
        names = "" if "--help-all" in argv else cls.HELP_FLAGS
        return [arguments[name] for name in names.split() or arguments]

    @classmethod
    def flags(cls) -> list[str]:
        """Return all flags, such as --image-size."""
        return [f"--{name.replace('_', '-')}" for name, hint, _ in cls.arguments() if "Positional" not in str(hint)]

    def output_paths(self) -> list[tuple[str, Path]]:
        """Return (flag, folder) for each folder that the command writes to; `main` checks them first."""
        return []

    @abstractmethod
    def execute(self, argv: list[str]) -> Outcome:
        """Run the command; `argv` is the complete command line. Raises ValueError for errors that the user can fix."""


def requests_help(argv: Sequence[str]) -> bool:
    """Return whether a help flag is among the flags."""
    return any(word in ("--help", "-h", "--help-all") for word in argv)


def show_help(arguments: Iterable[Argument], *, prog: str, description: str) -> NoReturn:
    """Print the help of a command and exit."""
    parser = argparse.ArgumentParser(description=description, formatter_class=_WrapEachLine, add_help=False)
    usage = [prog, "[FLAGS]"]
    for name, hint, default in arguments:
        argument = next(item for item in hint.__metadata__ if hasattr(item, "help"))
        metavar = argument.metavar or _metavar(name, hint.__origin__)
        text = (argument.help or "").replace("%", "%%")
        if default is not False and default not in (dataclasses.MISSING, None, "", ()) and "Default:" not in text:
            text += f" Default: {' '.join(map(str, default)) if isinstance(default, tuple) else default}."
        elif default is dataclasses.MISSING and "Positional" not in str(hint):
            text += " Required."
        if "Positional" in str(hint):
            parser.add_argument(metavar, help=text)
            usage.append(metavar if default is dataclasses.MISSING else f"[{metavar}]")
        else:
            options: Any = {"metavar": metavar} if metavar else {"action": "store_true"}
            parser.add_argument(f"--{name.replace('_', '-')}", help=text, **options)
    parser.usage = " ".join(usage)
    parser.print_help()
    raise SystemExit(0)


class _WrapEachLine(argparse.HelpFormatter):
    """Wraps each line of the description separately; keeps example commands on one line and flags unbroken."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = text.splitlines()
        return "\n".join(
            line if line.startswith("velogan ") else "\n".join(self._split_lines(line, width)) for line in lines
        )


def _metavar(name: str, hint: Any) -> str:
    """Return the placeholder of a flag's value: its choices, NUMBER or the last part of its name; none for switches."""
    types = {*(get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint])} - {NoneType}
    choices = [str(choice) for item in types if get_origin(item) is Literal for choice in get_args(item)]
    if choices:
        return "|".join(choices)
    if types == {bool}:
        return ""
    return "NUMBER" if types <= {int, float} else name.rpartition(".")[2].upper()


def explain_parse_error(output: str, argv: Sequence[str], *, flags: Sequence[str]) -> str:
    """Convert tyro's `output` for a wrong command line to one sentence with the flag, the value and the fix."""
    output = " ".join(re.sub(r"[─-╿]", " ", output).split()).partition(" For full helptext")[0]
    if match := re.search(r"Unrecognized options: ([^\s,]+)", output):
        return explain_unknown_flag(match[1], flags)
    if match := re.search(r"Error parsing (--[\w.-]+): (.*?) Argument helptext", output):
        flag, reason = match.groups()
        expected = "a whole number" if "'int'" in reason or "int()" in reason else "a number"
        if hit := re.search(r"choices \('(?!None')(\w+)',\)", reason):
            expected += f", or {hit[1]}"
        argument = " ".join([flag, *_values_of(argv, flag)])
        return f"{argument}: give {'two numbers' if 'FLOAT FLOAT' in reason else expected}"
    if match := re.search(r"invalid choice '(.*?)' for argument '(.*?)'\. Expected one of \((.*)\)", output):
        value, name = match.group(1, 2)
        choices = [choice for choice in re.findall(r"'(.*?)'", match[3]) if choice != "None"]
        problem = f"{name} {value}: unknown choice" if name.startswith("-") else f"there is no {name} {value!r}"
        suggestion = did_you_mean(value, choices)
        if os.path.exists(value) and "--data" in flags:
            return f"{problem}; there are {', '.join(choices)}. For training images write --data {value} --out FOLDER"
        return f"{problem}{suggestion}{' There' if suggestion else '; there'} are {', '.join(choices)}"
    if match := re.search(r"Missing value for argument '(.*?)'", output):
        file = next((word for word in argv if word.startswith("-") and os.path.lexists(word)), None)
        return f"{file} looks like a flag: write ./{file}" if file else f"{match[1]}: its value is missing"
    if match := re.search(r"Missing from [^:]*: (.*?) \(required\)", output):
        name, _, text = match[1].partition(" ")
        return f"{name} is missing: {text}"
    return output


def _values_of(argv: Sequence[str], flag: str) -> Iterable[str]:
    """Yield the values of a flag: the words up to the next flag."""
    names = [word.partition("=")[0].replace("_", "-") for word in argv]
    if flag not in names:
        return
    index = names.index(flag)
    if "=" in argv[index]:
        yield argv[index].partition("=")[2]
    for word in argv[index + 1 :]:
        if word.startswith("--"):
            return
        yield word


def output_folder(out: Path) -> Path:
    """Return the folder to write to: the parent of `out` if `out` is a file or has a suffix, else `out` itself."""
    return out.parent if out.is_file() or (out.suffix and not out.is_dir()) else out
