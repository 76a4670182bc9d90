"""Choose the precision in which convolutions are fastest on a device, on CPUs by a measurement."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F


def precision_for(device: torch.device) -> tuple[str, str]:
    """Return fp32, bf16 or fp16, whichever computes convolutions fastest on `device`, and the reason.

    fp16, which needs loss scaling, is only for CUDA devices without bf16: those of compute capability 7.x.
    """
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16", "this GPU computes it natively"
        if torch.cuda.get_device_capability(device) >= (7, 0):
            return "fp16", "this GPU has no bf16, and computes float16 natively"
        return "fp32", "this GPU has no bf16, and is slow in float16"
    if device.type != "cpu":
        return "fp32", f"bf16 is not tried on {device.type}"
    speedup = measure_bf16_speedup()
    return ("bf16" if speedup > 1.2 else "fp32"), f"a convolution in bf16 measured {speedup:.1f}x float32 on this CPU"


@cache
def measure_bf16_speedup() -> float:
    """Return how many times faster a residual block's convolution is in bf16 than in fp32, forward and backward."""

    def step(dtype: torch.dtype) -> Callable[[], None]:
        x = torch.ones(1, 128, 34, 34, dtype=dtype).to(memory_format=torch.channels_last).requires_grad_()
        weight = torch.ones(128, 128, 3, 3, dtype=dtype, requires_grad=True)
        return lambda: F.conv2d(x, weight).sum().backward()

    return measure_speedup(step(torch.float32), step(torch.bfloat16))


def measure_speedup(plain: Callable[[], object], other: Callable[[], object]) -> float:
    """Return how many times faster the call `other` is than `plain`, on one thread.

    It compares the CPU time of this thread, so that other work on the machine hardly matters. The calls
    alternate, and the fastest time of each counts; three rounds suffice if `other` is less than half as fast.
    """
    seconds = {plain: float("inf"), other: float("inf")}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for number in range(13):  # the first calls prepare weights and memory
            if number == 3 and seconds[other] > 2 * seconds[plain]:
                break
            for run in seconds:
                start = time.thread_time()
                run()
                seconds[run] = min(seconds[run], time.thread_time() - start)
    finally:
        torch.set_num_threads(threads)
    return seconds[plain] / seconds[other]
