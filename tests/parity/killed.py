"""Runs one velogan command again and again in processes that are killed, until one comes through. Not a test itself.

    python killed.py calls  velogan's arguments     kill inside the 1st, 2nd, 3rd ... file-system call
    python killed.py SEED   velogan's arguments     kill at ten random moments

The children are forked from a process that has imported everything, so that each starts at once.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator

import torch._dynamo  # noqa: F401 (two seconds that every optimizer would take)

import velogan.cli.train
import velogan.training.run

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


def start(argv: list[str], number: int | None) -> int:
    """The process id of a child that runs the command."""
    child = os.fork()
    if child == 0:
        if number is not None:
            die_in_call(number)
        code = velogan.cli.main(argv)
        sys.stdout.flush()
        os._exit(code)
    return child


def statuses(how: str, argv: list[str]) -> Iterator[int]:
    """How each child ended."""
    if how == "calls":
        for number in itertools.count(1):
            yield os.waitpid(start(argv, number), 0)[1]
    moments = random.Random(int(how))
    for _ in range(10):
        child = start(argv, None)
        time.sleep(moments.uniform(0.05, 0.8))
        os.kill(child, signal.SIGKILL)
        yield os.waitpid(child, 0)[1]
    yield os.waitpid(start(argv, None), 0)[1]


def main() -> int:
    """The exit code of the child that came through; the number of kills goes to standard error."""
    how, *argv = sys.argv[1:]
    for kills, status in enumerate(statuses(how, argv)):
        if os.WIFEXITED(status):
            print(f"killed {kills} times", file=sys.stderr)
            return os.WEXITSTATUS(status)
        assert os.WTERMSIG(status) == signal.SIGKILL
    return 1


if __name__ == "__main__":
    sys.exit(main())
