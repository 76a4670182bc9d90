"""What a process runs that is to be killed inside a file-system call. Not a test itself."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Callable

CALLS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir")


def die_in_call(number: int) -> None:
    """Lets this process kill itself in its `number`-th file-system call, every other time with a torn file."""
    count = itertools.count(1)

    def deadly(call: Callable) -> Callable:
        def wrapped(*args, **settings):
            if next(count) == number:
                if call is fsync and number % 2:
                    tear(args[0])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **settings)

        return wrapped

    fsync = os.fsync
    for name in CALLS:
        setattr(os, name, deadly(getattr(os, name)))


def tear(file: int) -> None:
    """Leaves half of an open file, as a machine without power would."""
    with contextlib.suppress(OSError):  # a folder
        os.ftruncate(file, os.fstat(file).st_size // 2)
