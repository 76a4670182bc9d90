"""Starts velogan commands as processes of their own, forked from one that has imported everything. Not a test itself.

A line of JSON on standard input starts a command, and the answer is its process id:
`{"argv": [...], "said": FILE, "out": FILE, "plain": BOOL, "env": {...}, "cwd": FOLDER, "code": TEXT}`.
It runs with these environment variables in this folder, after this Python. Its standard error goes to `said`, its
standard output to `out`, or to `said` too.
`{"wait": PID}` answers with the exit code, below zero for a signal; with `"peak": true`, `[code, MB]` of most memory;
with `"poll": true` at once, null while it runs.
A `plain` process gives up root's right to pass over file modes.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback
from collections.abc import Mapping
from types import MappingProxyType

import torch
import torch._dynamo  # two seconds that every optimizer would take

import velogan.api
import velogan.data.sets.check  # noqa: F401 (what commands import when they are at work)
from velogan.cli import main as velogan_command
from velogan.cli.commands import COMMANDS
from velogan.kernels.precision import measure_bf16_speedup

CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2


class CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class CapData(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def obey_file_modes() -> None:
    """Drops CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH (capset(2), version 3); others than root have neither."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = CapHeader(0x20080522, 0), (CapData * 2)()
    assert libc.capget(ctypes.byref(header), data) == 0
    data[0].effective &= ~(1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH)
    assert libc.capset(ctypes.byref(header), data) == 0


def start(
    argv: list[str],
    said: str,
    out: str = "",
    plain: bool = False,
    env: Mapping[str, str] = MappingProxyType({}),
    cwd: str = ".",
    code: str = "",
) -> int:
    child = os.fork()
    if child:
        return child
    ended = 99
    try:
        for number, file in ((2, said), (1, out)):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if file else 2, number)
        os.environ.update(env)
        os.chdir(cwd)
        if plain:
            obey_file_modes()
        exec(code, {})
        ended = velogan_command(argv)
    except SystemExit as end:
        ended = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended)


def wait(pid: int, *, peak: bool = False, poll: bool = False) -> object:
    done, status, used = os.wait4(pid, os.WNOHANG if poll else 0)
    if not done:
        return None
    code = os.waitstatus_to_exitcode(status)
    return [code, used.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)] if peak else code


def main() -> None:
    torch.set_num_threads(1)
    measure_bf16_speedup()  # measured once, for all that are forked
    for command in COMMANDS.values():
        command.load()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        asked = json.loads(line)
        answer = wait(asked.pop("wait"), **asked) if "wait" in asked else start(**asked)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
