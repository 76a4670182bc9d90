"""The number type in which convolutions are fastest on a device: measured if not known."""

from __future__ import annotations

import time
from functools import cache

import torch
import torch.nn.functional as F


def precision_for(device: torch.device) -> tuple[str, str]:
    """fp32, bf16 or fp16 for `device`, whichever computes convolutions faster, and why.

    fp16, which needs a scaled loss, is for CUDA devices without bf16 alone: those of compute capability 7.
    """
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16", "this GPU computes it natively"
        if torch.cuda.get_device_capability(device) >= (7, 0):
            return "fp16", "this GPU has no bf16, and computes float16 natively"
        return "fp32", "this GPU has no bf16, and is slow in float16"
    if device.type != "cpu":
        return "fp32", f"bf16 is not tried on {device.type}"
    gain = bf16_gain()
    return ("bf16" if gain > 1.2 else "fp32"), f"a convolution in bf16 measured {gain:.1f}x float32 on this CPU"


@cache
def bf16_gain() -> float:
    """How many times faster a residual block's convolution is in bf16, forward and backward.

    It is measured once a process, on one thread, by its processor time. The types take ten turns and the fastest time
    of each counts, so that other work on the machine hardly matters; bf16 that is twice as slow gets three turns.
    """
    seconds = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for turn in range(10):
        if turn == 3 and seconds[torch.bfloat16] > 2 * seconds[torch.float32]:
            break
        for dtype in seconds:
            x = torch.ones(1, 128, 34, 34, dtype=dtype).to(memory_format=torch.channels_last).requires_grad_()
            weight = torch.ones(128, 128, 3, 3, dtype=dtype, requires_grad=True)
            start = time.thread_time()
            F.conv2d(x, weight).sum().backward()
            seconds[dtype] = min(seconds[dtype], time.thread_time() - start)
    torch.set_num_threads(threads)
    return seconds[torch.float32] / seconds[torch.bfloat16]
