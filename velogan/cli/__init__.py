"""The command line: what is asked, exit codes, --json. Each command is a class beside this file, imported when needed.

Everything a command does is one call into the rooms; standard output's last line is the result.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from itertools import pairwise
from typing import TYPE_CHECKING

from velogan import __version__
from velogan.cli.commands import COMMANDS
from velogan.engine.processes import EndOfRun, ReportedByAnotherRank, is_distributed, is_main_process, local_rank
from velogan.files import check_writable

if TYPE_CHECKING:
    from velogan.cli.flags import Flags

__all__ = ["COMMANDS", "main"]

IN_SEVERAL_PROCESSES = (("train",), ("search",))
"""The commands that torchrun may start."""

_BEGAN = time.monotonic()

os.environ.setdefault("PYDANTIC_ERRORS_INCLUDE_URL", "0")  # a wrong field's message should fit the terminal


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line; returns 0 done, 1 a part failed, 2 bad input.

    Of several processes that torchrun started the first one speaks, and whichever has something else to tell.
    """
    began = _BEGAN if argv is None else time.monotonic()
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        command = _parse(argv) if local_rank() == 0 else _parse_silently(argv)
        type(command).began = began
        for flag, folder in (
            command.places() if is_main_process() else ()
        ):  # of several processes the first alone writes
            check_writable(flag, folder)
        result, code = command.execute(argv)
    except EndOfRun as error:
        if not isinstance(error, ReportedByAnotherRank):
            _complain(error)
        return error.code
    except ValueError as error:
        if local_rank() == 0:
            _complain(error)
        return 2
    except BrokenPipeError:  # `velogan ... | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        _complain(error)
        return 1
    except KeyboardInterrupt:
        print("velogan: interrupted", file=sys.stderr)
        return 130
    if command.json and is_main_process():
        print(json.dumps(result, default=str))
    return code


def _complain(error: Exception) -> None:
    from pydantic import ValidationError

    from velogan.observe.progress import printable

    text = str(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and "make room" not in text:
        text += ": make room there, or name another place"
    if isinstance(error, ValidationError):
        from velogan.config import explain

        text = explain(error, source="the flags")
    print("velogan: " + "\n".join(map(printable, text.split("\n"))), file=sys.stderr)


def _parse(argv: list[str]) -> Flags:
    """The command with its flags. A wrong flag ends the process with a message and exit code 2."""
    words = next((words for words in COMMANDS if tuple(argv[: len(words)]) == words), None)
    if words is None:
        if argv == ["--version"]:
            print(f"velogan {__version__}")
        else:
            asked = not argv or argv[-1] in ("--help", "-h") or argv == ["data"]
            print(_overview([] if asked else argv), file=sys.stdout if asked else sys.stderr)
            raise SystemExit(0 if asked else 2)
        raise SystemExit(0)
    if is_distributed() and words not in IN_SEVERAL_PROCESSES:
        raise ValueError(f"only train and search run in several processes: start velogan {argv[0]} without torchrun")
    before = next((before for before, word in pairwise(argv) if not word and _names_files(before)), None)
    if before is not None:
        raise ValueError(f"what follows {before} is empty, perhaps a variable that is not set: give it a value")
    command = COMMANDS[words]
    prog = " ".join(("velogan", *words))
    return command.load().parse(argv[len(words) :], prog=prog, description=command.description())


def _names_files(before: str) -> bool:
    """Whether a word behind `before` names a file or a folder: behind a flag of such, or behind no flag."""
    return not before.startswith("--") or before in ("--data", "--out", "--config", "--start", "--against", "--masks")


def _parse_silently(argv: list[str]) -> Flags:
    """As `_parse`: what is wrong with the flags, another process of this host says."""
    with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere), redirect_stdout(nowhere):
        return _parse(argv)


def _overview(argv: list[str]) -> str:
    """The list of the commands; behind it, where `argv` asks for one that there is not, a guess at what was meant."""
    lines = ["usage: velogan COMMAND ...   (velogan COMMAND --help says more)", ""]
    lines += [f"  {' '.join(words):<13} {command.summary}" for words, command in COMMANDS.items()]
    if argv and argv[0] not in ("--help", "-h"):
        from velogan.files import nearest

        asked = " ".join(argv[:2]) if argv[0] == "data" else argv[0]
        known = [" ".join(words) for words in COMMANDS]
        lines.insert(0, f"velogan: there is no command {asked!r}{nearest(asked, known)}")
    return "\n".join(lines)
