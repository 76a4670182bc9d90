"""Memory bandwidth of this machine for the copies of `DistributedContext.all_reduce_gradients`."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

_NUMBERS = 2**22
_TURNS = 9


def memory_speed(clock: Callable[[], float] = time.thread_time) -> float:
    """Measure the bytes per second, read or written, when one thread concatenates parts of a tensor and divides it.

    By processor time, so that other work on the machine hardly counts. The first turns, which allocate memory, are
    left out.
    """
    parts, threads = tuple(torch.ones(16, _NUMBERS // 16)), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        elapsed = [_once(parts, clock) for _ in range(_TURNS)]
    finally:
        torch.set_num_threads(threads)
    return 4 * 4 * _NUMBERS / median(elapsed[2:])


def _once(parts: tuple[torch.Tensor, ...], clock: Callable[[], float]) -> float:
    started_at = clock()
    torch.cat(parts).div_(2)
    return clock() - started_at
