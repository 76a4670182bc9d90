"""How fast this machine's memory is for what `DistributedContext.all_reduce_gradients` does with gradients."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

_NUMBERS = 2**22
_TURNS = 9


def memory_speed(clock: Callable[[], float] = time.thread_time) -> float:
    """Bytes a second, read or written, when one thread copies parts of a tensor together and divides it.

    By processor time, so that other work on the machine hardly counts. The first turns, which ask the system for
    memory, are left out.
    """
    parts, threads = tuple(torch.ones(16, _NUMBERS // 16)), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        took = [_once(parts, clock) for _ in range(_TURNS)]
    finally:
        torch.set_num_threads(threads)
    return 4 * 4 * _NUMBERS / median(took[2:])


def _once(parts: tuple[torch.Tensor, ...], clock: Callable[[], float]) -> float:
    began = clock()
    torch.cat(parts).div_(2)
    return clock() - began
