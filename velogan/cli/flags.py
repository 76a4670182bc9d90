"""The base class of all commands: a dataclass whose fields are the flags, parsed by tyro."""

from __future__ import annotations

import dataclasses
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Self, get_type_hints

import tyro

from velogan.files import did_you_mean

Json = Annotated[bool, tyro.conf.arg(help="Print the result as one JSON object, the last line on stdout.")]

Weights = Annotated[
    Literal["ema", "raw"] | None,
    tyro.conf.arg(
        help="ema: exponential moving average of the weights; raw: the weights themselves. Default: ema if saved.",
        metavar="ema|raw",
    ),
]
Checkpoint = Annotated[
    Literal["last", "best"] | None,
    tyro.conf.arg(
        help="Checkpoint of a run: last, or best by held-out pictures. Default: last, or best if last is much worse.",
        metavar="last|best",
    ),
]

FP32 = "Compute in plain float32 instead of with the accelerated network, which differs by a few of 255 levels."
DEVICE = "Device to compute on: auto, cpu, cuda or mps."

REFERENCE_FLAGS = (
    " dataroot name checkpoints_dir suffix gpu_ids model input_nc output_nc ngf ndf netG netD n_layers_D norm "
    "init_type init_gain no_dropout dataset_mode direction serial_batches num_threads batch_size load_size crop_size "
    "max_dataset_size preprocess no_flip display_winsize epoch load_iter which_epoch verbose use_wandb "
    "wandb_project_name n_epochs n_epochs_decay niter niter_decay lr beta1 lr_policy lr_decay_iters gan_mode lambda_A "
    "lambda_B lambda_identity lambda_L1 pool_size continue_train epoch_count phase save_latest_freq save_epoch_freq "
    "save_by_iter print_freq display_freq update_html_freq display_ncols display_id display_server display_env "
    "display_port no_html results_dir num_test how_many ntest aspect_ratio eval "
)
"""The flags of the reference implementation, which docs/migration.md lists."""

Outcome = tuple[dict[str, Any], int]
"""The result of a command: the object that --json prints, and the exit code."""


class Flags(ABC):
    """A command with the values of its flags. Its docstring, from the second paragraph on, is part of its help."""

    HELP_FLAGS: ClassVar[str] = ""
    """Names of the flags that --help shows, in this order, separated by spaces; empty: all."""

    json: bool

    started_at: ClassVar[float | None] = None
    """Start time of the command by `time.monotonic`, before its imports; set by `main`."""

    @classmethod
    def parse(cls, argv: Sequence[str], *, prog: str, description: str) -> Self:
        """Return the command with the values of its flags. Raises ValueError, with one sentence, if they are wrong."""
        if requests_help(argv):
            show_help(cls, cls.HELP_FLAGS.split(), prog=prog, description=description)
        return cls.parse_with_tyro(argv, prog=prog, description=description)

    @classmethod
    def parse_with_tyro(cls, argv: Sequence[str], **options: Any) -> Self:
        """Parse the flags by tyro. Raises ValueError with tyro's error in one sentence."""
        output = StringIO()
        try:
            with redirect_stderr(output):
                return tyro.cli(cls, args=argv, **options)
        except SystemExit as end:
            raise ValueError(explain_parse_error(output.getvalue(), argv, flags=cls.flags())) from end

    @classmethod
    def flags(cls) -> list[str]:
        """Return all flags, such as --image-size."""
        hints = get_type_hints(cls, include_extras=True)
        fields: Any = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
        return [f"--{field.name.replace('_', '-')}" for field in fields if "Positional" not in str(hints[field.name])]

    def output_paths(self) -> list[tuple[str, Path]]:
        """Return the folders that the command writes to, with their flags; they are checked before it starts."""
        return []

    @abstractmethod
    def execute(self, argv: list[str]) -> Outcome:
        """Run the command; `argv` is the complete command line. Raises ValueError for errors that the user can fix."""


def requests_help(argv: Sequence[str]) -> bool:
    """Return whether a help flag is among the flags."""
    return any(word in ("--help", "-h", "--help-all") for word in argv)


def show_help(
    command: type[Flags],
    names: Iterable[str] = (),
    *,
    prog: str,
    description: str,
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> NoReturn:
    """Print the help of a command's flags and exit.

    names: the flags to show; empty: all
    defaults: default values of flags that have none in the class
    """
    values: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(command)}  # pyright: ignore[reportArgumentType]
    values |= defaults
    hints = get_type_hints(command, include_extras=True)
    fields = []
    for name in names or values:
        hint = hints[name]
        if name not in defaults:
            hint = Annotated[hint, tyro.conf.arg(help_behavior_hint=_format_default)]
        fields.append((name, hint, dataclasses.field(default=values[name])))
    flags = dataclasses.make_dataclass("Help", fields, kw_only=True)
    config = () if defaults else (tyro.conf.FlagCreatePairsOff,)
    tyro.cli(flags, args=["--help"], prog=prog, description=description, config=config)
    raise AssertionError("tyro exits after printing help")


def _format_default(label: str) -> str:
    """Return the default value as help shows it, or nothing if it is None, False or empty."""
    return "" if label in ("None", "False", "") else f"(default: {label})"


def explain_parse_error(output: str, argv: Sequence[str], *, flags: Sequence[str]) -> str:
    """Return one sentence that names the flag, the value and the fix, from tyro's `output` for a wrong command line."""
    output = " ".join(re.sub(r"[─-╿]", " ", output).split()).partition(" For full helptext")[0]
    if match := re.search(r"Unrecognized options: ([^\s,]+)", output):
        name = re.sub("^-+|=.*", "", match[1]).replace("-", "_")
        hint = "; docs/migration.md has the reference implementation's flags" if f" {name} " in REFERENCE_FLAGS else ""
        return f"{match[1]}: unknown flag{_suggest_flags(match[1], flags)}{hint}"
    if match := re.search(r"Error parsing (--[\w.-]+): (.*?) Argument helptext", output):
        flag, reason = match.groups()
        expected = "a whole number" if "'int'" in reason or "int()" in reason else "a number"
        if word := re.search(r"choices \('(?!None')(\w+)',\)", reason):
            expected += f", or {word[1]}"
        argument = " ".join([flag, *_values_of(argv, flag)])
        return f"{argument}: give {'two numbers' if 'FLOAT FLOAT' in reason else expected}"
    if match := re.search(r"invalid choice '(.*?)' for argument '(.*?)'\. Expected one of \((.*)\)", output):
        value, name = match.group(1, 2)
        choices = [choice for choice in re.findall(r"'(.*?)'", match[3]) if choice != "None"]
        problem = f"{name} {value}: unknown choice" if name.startswith("-") else f"there is no {name} {value!r}"
        suggestion = did_you_mean(value, choices)
        return f"{problem}{suggestion}{' There' if suggestion else '; there'} are {', '.join(choices)}"
    if match := re.search(r"Missing value for argument '(.*?)'", output):
        file = next((word for word in argv if word.startswith("-") and os.path.lexists(word)), None)
        return f"{file} looks like a flag: write ./{file}" if file else f"{match[1]}: its value is missing"
    if match := re.search(r"Missing from [^:]*: (.*?) \(required\)", output):
        return f"missing: {match[1]}"
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


def _suggest_flags(flag: str, flags: Sequence[str]) -> str:
    """Return a hint with the flags of the same field name in any section, or else with the most similar flag."""
    flag = flag.partition("=")[0].replace("_", "-")
    same_field = [candidate for candidate in flags if candidate.rpartition(".")[2] == flag.lstrip("-")]
    return f"; did you mean {' or '.join(same_field[:3])}?" if same_field else did_you_mean(flag, flags)


def output_folder(out: Path) -> Path:
    """Return the folder that is written to: the parent of `out` if that is a file or has a suffix, else `out`."""
    return out.parent if out.is_file() or (out.suffix and not out.is_dir()) else out
