"""Starts velogan commands as processes of their own, forked from one that has imported everything. Not a test itself.

A line of JSON on standard input, `{"argv": [...], "said": FILE, "plain": BOOL, "env": {...}, "code": TEXT}`, starts a
command with these environment variables, after this Python; its standard error goes to the file, the answer is its
process id. `{"wait": PID}` answers with the exit code, below zero for a signal.
A `plain` process gives up root's right to pass over file modes.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Mapping
from types import MappingProxyType

import torch
import torch._dynamo  # two seconds that every optimizer would take

import velogan.cli.train
import velogan.training.run

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
    argv: list[str], said: str, plain: bool = False, env: Mapping[str, str] = MappingProxyType({}), code: str = ""
) -> int:
    child = os.fork()
    if child:
        return child
    ended = 99
    try:
        error = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(error, 1)
        os.dup2(error, 2)
        os.environ.update(env)
        if plain:
            obey_file_modes()
        exec(code, {})
        ended = velogan.cli.main(argv)
    except SystemExit as end:
        ended = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended)


def main() -> None:
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        asked = json.loads(line)
        answer = os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1]) if "wait" in asked else start(**asked)
        answers.write(f"{answer}\n")
        answers.flush()


if __name__ == "__main__":
    main()
