"""Functions in a subprocess: it reads the request as JSON from standard input, and prints its result last."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from velogan.engine.processes import child_environment

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def run_in_subprocess(
    module: str, request: Mapping[str, Any], *, cores: Sequence[int] = ()
) -> tuple[int, dict[str, Any]]:
    """Run `python -m MODULE`, which must call `subprocess_main`, on the CPU cores with indices `cores` (default: all).

    Returns the exit code (negative: the signal that killed it) and the result. The result has an `error` if the
    function failed, and is empty if the process was killed.
    """
    # in a new session: Ctrl-C in the terminal reaches only this process, which then kills the child
    child = subprocess.run(
        [sys.executable, "-P", "-m", module],
        input=json.dumps({**request, "cores": list(cores), "parent": os.getpid()}),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=child_environment(),
        start_new_session=True,
    )
    with suppress(ValueError, IndexError):
        result = json.loads(child.stdout.splitlines()[-1])
        if isinstance(result, dict):
            return child.returncode, result
    return child.returncode, {}


def subprocess_main(function: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> int:
    """Read the request, call `function` with it and print its result, or the `error`. Return the exit code.

    If the parent process ends, this one gets a SIGTERM (on Linux).
    """
    request = json.load(sys.stdin)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != request["parent"]:
        raise SystemExit("the parent process has ended")
    if request["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, request["cores"])
    code, result = 0, {}
    try:
        result = function(request)
    except ValueError as error:
        code, result = 2, {"error": str(error)}
    except Exception as error:  # any other error: the parent process handles it
        lines = str(error).strip().splitlines()
        code, result = 1, {"error": f"{type(error).__name__}: {lines[0] if lines else 'no text'}"}
    print(json.dumps(result))
    return code
