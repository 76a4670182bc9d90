"""The memory of the process."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_MMAP_MAX, _TRIM_THRESHOLD = -4, -1  # malloc.h


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory in this process. Return False for other C libraries, which cannot.

    By default glibc returns large blocks to the system, and each step spends a tenth of its time on getting the same
    pages back. The peak memory of the process stays the same.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and all(mallopt(what, value) for what, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1)))


def peak_memory_mb() -> float:
    """Return the peak memory of this process, in MB of 2^20 bytes."""
    import resource  # Windows has it not

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def free_memory_mb() -> float:
    """Return the memory that this process can still use without swapping, in MB of 2^20 bytes.

    What the system calls available, and what the control group leaves where it has a limit; half of all memory where
    neither is told.
    """
    told = Path("/proc/meminfo")
    if not told.exists():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2 / 2**20
    (available,) = [line.split()[1] for line in told.read_text().splitlines() if line.startswith("MemAvailable")]
    left = [int(available) / 2**10]
    group = Path("/sys/fs/cgroup")
    limit, used = group / "memory.max", group / "memory.current"
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        left.append((int(limit.read_text()) - int(used.read_text())) / 2**20)
    return min(left)
