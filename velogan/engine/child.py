"""Work in a process of its own: a request as JSON on its standard input, the answer as the last line of its output."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any

from velogan.engine.processes import child_environment

_PARENT_DIES = 1  # PR_SET_PDEATHSIG, linux/prctl.h


def ask(
    module: str, request: Mapping[str, Any], *, cores: list[int], said: IO[Any] | int
) -> tuple[int, dict[str, Any]]:
    """Run `python -m MODULE`, which calls `answer`, on these processor cores; its messages go to `said`.

    Returns the exit code (below zero: the signal that it died of) and the answer, which has an `error` where the work
    failed, and is empty where the process was killed.
    """
    command = [sys.executable, "-P", "-m", module]
    # a session of its own: Ctrl-C in the terminal is for this process, which stops its children itself
    child = subprocess.Popen(
        command,
        env=child_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=said,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = child.communicate(json.dumps({**request, "cores": cores, "parent": os.getpid()}))
    except BaseException:
        child.terminate()
        child.communicate()
        raise
    with suppress(ValueError, IndexError):
        found = json.loads(printed.splitlines()[-1])
        if isinstance(found, dict):
            return child.returncode, found
    return child.returncode, {}


def answer(work: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> int:
    """Reads the request, does the `work` and prints its answer, or the `error`. Returns the exit code.

    Where the process that asked is gone, this one is told to stop, as by SIGTERM.
    """
    request = json.load(sys.stdin)
    with suppress(OSError, AttributeError):  # Linux alone has it
        ctypes.CDLL(None).prctl(_PARENT_DIES, signal.SIGTERM)
    if os.getppid() != request["parent"]:
        raise SystemExit("the process that asked for this has ended before it began")
    if request["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, request["cores"])
    code, found = 0, {}
    try:
        found = work(request)
    except ValueError as error:
        code, found = 2, {"error": str(error)}
    except Exception as error:  # whatever it is, the process that asked goes on and tells it
        text = str(error).strip().splitlines()
        code, found = 1, {"error": f"{type(error).__name__}: {text[0] if text else 'no text'}"}
    print(json.dumps(found))
    return code
