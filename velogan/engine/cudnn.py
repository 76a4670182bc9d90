"""How cuDNN chooses its algorithms."""

from __future__ import annotations

import torch


def measure_convolutions(device: torch.device, *, one_size: bool) -> None:
    """On CUDA, lets cuDNN measure once for each shape which algorithm is fastest, as the reference does.

    `one_size`: all images have one size. Otherwise nothing is measured, as each size would cost a measurement. The
    setting holds for the whole process.
    """
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = one_size
