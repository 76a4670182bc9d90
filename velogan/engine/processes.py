"""Rank and CPU cores of this process, the environment for its children, and exceptions that end a run."""

from __future__ import annotations

import os
from pathlib import Path


class EndOfRun(Exception):
    """The run cannot continue; `code` is the exit code of the process."""

    def __init__(self, *details: object, code: int = 1):
        super().__init__(*details)
        self.code = code


class ReportedByAnotherRank(EndOfRun):
    """Another rank reports why the run ends; this one prints nothing."""


def is_distributed() -> bool:
    """Return whether torchrun started this process as one of several."""
    return "WORLD_SIZE" in os.environ and read_env_int("WORLD_SIZE") > 1


def is_main_process() -> bool:
    """Return whether this process is rank 0, or the only one."""
    return not is_distributed() or read_env_int("RANK") == 0


def local_rank() -> int:
    """Return the rank of this process among the processes of its host; 0 for a single process."""
    return read_env_int("LOCAL_RANK", "0") if is_distributed() else 0


def read_env_int(name: str, default: str | None = None) -> int:
    """Return an integer variable of torchrun's environment. Raises ValueError if it is missing or not a number."""
    text = os.environ.get(name, default)
    if text is None or not text.isdigit():
        raise ValueError(f"WORLD_SIZE is set, but {name} is {text!r} in the environment: start with torchrun")
    return int(text)


def available_cores() -> list[int]:
    """Return the indices of the CPU cores that this process may run on."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def child_environment() -> dict[str, str]:
    """Return an environment for child processes in which `import velogan` finds this package, not another folder."""
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
