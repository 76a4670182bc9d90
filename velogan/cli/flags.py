"""What every command is: a dataclass whose fields are its flags, parsed by tyro."""

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

from velogan.files import nearest

Json = Annotated[bool, tyro.conf.arg(help="Print the result as one JSON object, the last line on stdout.")]

Weights = Annotated[
    Literal["ema", "raw"] | None,
    tyro.conf.arg(
        help="ema: averaged over the last images; raw: as the last step left them. Default: ema, where kept.",
        metavar="ema|raw",
    ),
]
Checkpoint = Annotated[
    Literal["last", "best"] | None,
    tyro.conf.arg(
        help="Of a run: the last, or the best by held-out pictures. Default: the last, unless it is much worse.",
        metavar="last|best",
    ),
]

FP32 = "Compute in plain float32, not with the accelerated network, which differs by a few levels of 8 bits."

REFERENCE = (
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
"""What a command gives: the object that --json prints, and the exit code."""


class Flags(ABC):
    """A command with what was asked of it. Its help is its docstring, from the second paragraph on."""

    FIRST: ClassVar[tuple[str, ...]] = ()
    """The flags that --help shows, in this order; all where it is empty."""

    json: bool

    began: ClassVar[float | None] = None
    """When the command began, by `time.monotonic`: set by `main`, before all that it takes is imported."""

    @classmethod
    def parse(cls, argv: Sequence[str], *, prog: str, description: str) -> Self:
        """The command from its flags. ValueError says in one sentence what is wrong with them."""
        if asks_help(argv):
            show_help(cls, cls.FIRST, prog=prog, description=description)
        return cls.parsed(argv, prog=prog, description=description)

    @classmethod
    def parsed(cls, argv: Sequence[str], **how: Any) -> Self:
        """The command from its flags, as tyro reads them."""
        said = StringIO()
        try:
            with redirect_stderr(said):
                return tyro.cli(cls, args=argv, **how)
        except SystemExit as end:
            raise ValueError(sentence(said.getvalue(), argv, flags=cls.flags())) from end

    @classmethod
    def flags(cls) -> list[str]:
        """All flags, as --image-size."""
        hints = get_type_hints(cls, include_extras=True)
        named = [one.name for one in dataclasses.fields(cls) if "Positional" not in str(hints[one.name])]  # pyright: ignore[reportArgumentType]
        return [f"--{name.replace('_', '-')}" for name in named]

    def places(self) -> list[tuple[str, Path]]:
        """The folders that the command writes into, each with the flag that names it; tried before it begins."""
        return []

    @abstractmethod
    def execute(self, argv: list[str]) -> Outcome:
        """Does what was asked; `argv` is the whole command line. ValueError for what the user can mend."""


def asks_help(argv: Sequence[str]) -> bool:
    """Whether the flags ask what flags there are."""
    return any(word in ("--help", "-h", "--help-all") for word in argv)


def show_help(
    command: type[Flags],
    names: Iterable[str] = (),
    *,
    prog: str,
    description: str,
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> NoReturn:
    """Prints what the flags called `names` are for, or all of a command's, and ends the process."""
    known: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(command)}  # pyright: ignore[reportArgumentType]
    known |= defaults
    hints = get_type_hints(command, include_extras=True)
    shown = []
    for name in names or known:
        hint = hints[name] if name in defaults else Annotated[hints[name], tyro.conf.arg(help_behavior_hint=_default)]
        shown.append((name, hint, dataclasses.field(default=known[name])))
    flags = dataclasses.make_dataclass("Help", shown, kw_only=True)
    config = () if defaults else (tyro.conf.FlagCreatePairsOff,)
    tyro.cli(flags, args=["--help"], prog=prog, description=description, config=config)
    raise AssertionError("help ends the process")


def _default(label: str) -> str:
    """What help says of a flag's default value: nothing where leaving the flag out says enough."""
    return "" if label in ("None", "False", "") else f"(default: {label})"


def sentence(said: str, argv: Sequence[str], *, flags: Sequence[str]) -> str:
    """What tyro `said` of a wrong command line, in one sentence that names the flag, the value and the mend."""
    said = " ".join(re.sub(r"[─-╿]", " ", said).split()).partition(" For full helptext")[0]
    if found := re.search(r"Unrecognized options: ([^\s,]+)", said):
        there = "; docs/migration.md has the reference implementation's flags"
        known = f" {re.sub('^-+|=.*', '', found[1]).replace('-', '_')} " in REFERENCE
        return f"{found[1]}: there is no such flag here{_similar(found[1], flags)}{there if known else ''}"
    if found := re.search(r"Error parsing (--[\w.-]+): (.*?) Argument helptext", said):
        flag, why = found.groups()
        wanted = "a whole number" if "'int'" in why or "int()" in why else "a number"
        if word := re.search(r"choices \('(?!None')(\w+)',\)", why):
            wanted += f", or {word[1]}"
        given = " ".join([flag, *_values(argv, flag)])
        return f"{given}: give {'two numbers' if 'FLOAT FLOAT' in why else wanted}"
    if found := re.search(r"invalid choice '(.*?)' for argument '(.*?)'\. Expected one of \((.*)\)", said):
        value, name = found.group(1, 2)
        choices = [one for one in re.findall(r"'(.*?)'", found[3]) if one != "None"]
        wrong = f"{name} {value}: there is no such choice" if name.startswith("-") else f"there is no {name} {value!r}"
        close = nearest(value, choices)
        return f"{wrong}{close}{' There' if close else '; there'} are {', '.join(choices)}"
    if found := re.search(r"Missing value for argument '(.*?)'", said):
        taken = next((word for word in argv if word.startswith("-") and os.path.lexists(word)), None)
        return f"{taken} looks like a flag: write ./{taken}" if taken else f"{found[1]}: its value is missing"
    if found := re.search(r"Missing from [^:]*: (.*?) \(required\)", said):
        return f"missing: {found[1]}"
    return said


def _values(argv: Sequence[str], flag: str) -> Iterable[str]:
    """The words behind a flag."""
    plain = [word.partition("=")[0].replace("_", "-") for word in argv]
    if flag not in plain:
        return
    at = plain.index(flag)
    if "=" in argv[at]:
        yield argv[at].partition("=")[2]
    for word in argv[at + 1 :]:
        if word.startswith("--"):
            return
        yield word


def _similar(flag: str, flags: Sequence[str]) -> str:
    """The flags with the same last word, in whichever section, or else the one that is written most like it."""
    flag = flag.partition("=")[0].replace("_", "-")
    same = [one for one in flags if one.rpartition(".")[2] == flag.lstrip("-")]
    return f"; did you mean {' or '.join(same[:3])}?" if same else nearest(flag, flags)


def folder_of(out: Path) -> Path:
    """The folder of what a flag names, which is a file where its name has a suffix, or else the folder itself."""
    return out.parent if out.is_file() or (out.suffix and not out.is_dir()) else out
