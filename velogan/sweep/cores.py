"""Processor cores for one trial each: whoever holds a core's lock file has it, on this machine, among all sweeps."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

POLL_S = 0.2


def available() -> list[int]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@contextmanager
def held(count: int, *, folder: Path | None = None) -> Iterator[list[int]]:
    """Waits until `count` cores are free, and holds them until the end of the block or of this process.

    All that there are, where `count` is more. `folder` is for tests.
    """
    folder = folder or Path(tempfile.gettempdir()) / f"velogan-cores-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    cores = available()
    while True:
        with ExitStack() as stack:
            mine = []
            for core in cores:
                file = stack.enter_context(open(folder / str(core), "ab"))
                with suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    mine.append(core)
                if len(mine) == min(count, len(cores)):
                    yield mine
                    return
        time.sleep(POLL_S)
