"""How cuDNN chooses its algorithms."""

from __future__ import annotations

import torch


def measure_convolutions(device: torch.device, *, one_size: bool) -> None:
    """On CUDA, has cuDNN measure which of its algorithms is fastest, once for each shape, as the reference has it.

    Not where images are of many sizes, each of which would be measured. It is set for the process.
    """
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = one_size
