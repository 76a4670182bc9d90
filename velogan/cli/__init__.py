"""The command line: parse the arguments, run the command, print its result for --json and return the exit code.

Each command is a class in a module of this package; the module is imported when the command is used.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from velogan.cli.commands import COMMANDS
from velogan.cli.unknown_flags import check_config_flags, name_fields_as_typed
from velogan.engine.processes import EndOfRun, ReportedByAnotherRank, is_distributed, is_main_process, local_rank
from velogan.files import __version__, check_writable

if TYPE_CHECKING:
    from velogan.cli.flags import Flags

__all__ = ["COMMANDS", "main"]

DISTRIBUTED_COMMANDS = (("train",), ("search",))
"""The commands that can run in several processes under torchrun."""

_STARTED_AT = time.monotonic()

os.environ.setdefault("PYDANTIC_ERRORS_INCLUDE_URL", "0")  # a wrong field's message should fit the terminal


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code: 0 success, 1 (partial) failure, 2 invalid input, 130 interrupted.

    If torchrun started several processes, only the first process of each host prints errors in the flags.
    """
    started_at = _STARTED_AT if argv is None else time.monotonic()
    argv = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError):  # replaced streams may lack this; terminals may lack some characters
            stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
    try:
        command = _parse(argv) if local_rank() == 0 else _parse_silently(argv)
        type(command).started_at = started_at
        if is_main_process():  # only the first of several processes writes
            for flag, folder in command.output_paths():
                check_writable(flag, folder)
        result, code = command.execute(argv)
    except EndOfRun as error:
        if not isinstance(error, ReportedByAnotherRank):
            _print_error(error)
        return error.code
    except ValueError as error:
        if local_rank() == 0:
            _print_error(error, argv)
        return 2
    except BrokenPipeError:  # the reader of a pipe has closed it, as in `velogan ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        _print_error(error)
        return 1
    except KeyboardInterrupt:
        print("velogan: interrupted", file=sys.stderr)
        return 130
    if command.json and is_main_process():
        print(json.dumps(result, default=str))
    return code


def _print_error(error: Exception, argv: Sequence[str] = ()) -> None:
    from pydantic import ValidationError

    from velogan.observe.progress import printable

    text = str(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and "make room" not in text:
        text += ": make room on that disk or choose another folder"
    if isinstance(error, ValidationError):
        from velogan.config import explain

        text = explain(error, source="the flags")
    text = name_fields_as_typed(text, argv)
    print("velogan: " + "\n".join(map(printable, text.split("\n"))), file=sys.stderr)


def _parse(argv: list[str]) -> Flags:
    """Return the command with its flags. Raises ValueError if they are wrong, SystemExit after printing help."""
    if argv[:1] == ["help"]:  # velogan help train
        argv = [*argv[1:], "--help"]
    words = next((words for words in COMMANDS if tuple(argv[: len(words)]) == words), None)
    if words is None:
        if argv == ["--version"]:
            print(f"velogan {__version__}")
        else:
            needs_help = not argv or argv[-1] in ("--help", "-h") or argv == ["data"]
            print(_overview([] if needs_help else argv), file=sys.stdout if needs_help else sys.stderr)
            raise SystemExit(0 if needs_help else 2)
        raise SystemExit(0)
    if is_distributed() and words not in DISTRIBUTED_COMMANDS:
        raise ValueError(f"only train and search run in several processes: start velogan {argv[0]} without torchrun")
    path_flags = ("--data", "--out", "--config", "--start", "--against")
    empty = (before for before, word in pairwise(argv) if not word and (before[:2] != "--" or before in path_flags))
    if (previous := next(empty, None)) is not None:
        raise ValueError(f"the value after {previous} is empty, perhaps an unset shell variable: give a path")
    check_config_flags(argv)
    command = COMMANDS[words]
    prog = " ".join(("velogan", *words))
    return command.load().parse(argv[len(words) :], prog=prog, description=command.description())


def _parse_silently(argv: list[str]) -> Flags:
    """Parse like `_parse`, but without output, since local rank 0 prints errors in the flags."""
    with open(os.devnull, "w") as devnull, redirect_stderr(devnull), redirect_stdout(devnull):
        return _parse(argv)


def _overview(argv: list[str]) -> str:
    """Return the list of commands, after a suggestion if `argv` names an unknown command."""
    lines = ["usage: velogan COMMAND ...   (details: velogan COMMAND --help)", ""]
    lines += [f"  {' '.join(words):<13} {command.summary}" for words, command in COMMANDS.items()]
    if argv and argv[0] not in ("--help", "-h"):
        from velogan.files import did_you_mean

        name = " ".join(argv[:2]) if argv[0] == "data" else argv[0]
        names = [" ".join(words) for words in COMMANDS]
        lines.insert(0, f"velogan: there is no command {name!r}{did_you_mean(name, names)}")
    return "\n".join(lines)
