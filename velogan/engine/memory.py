"""Memory of this process and of the machine."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_MMAP_MAX, _TRIM_THRESHOLD = -4, -1  # malloc.h


def keep_freed_memory() -> bool:
    """Make glibc reuse freed memory instead of returning it to the system; return whether that succeeded.

    Otherwise each step spends a tenth of its time on allocating the same pages again. Peak memory stays the same.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and all(mallopt(*setting) for setting in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1)))


def peak_memory_mb() -> float:
    """Return the peak memory of this process, in MB of 2^20 bytes."""
    import resource  # missing on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def free_memory_mb() -> float:
    """Return the memory that this process can still use without swapping, in MB of 2^20 bytes.

    On Linux it is the available memory, up to the limit of the control group; elsewhere half of the physical memory.
    """
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2 / 2**20
    (available,) = [line.split()[1] for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable")]
    free_mb = int(available) / 2**10
    cgroup = Path("/sys/fs/cgroup")
    limit, used = cgroup / "memory.max", cgroup / "memory.current"
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        free_mb = min(free_mb, (int(limit.read_text()) - int(used.read_text())) / 2**20)
    return free_mb
