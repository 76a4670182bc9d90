"""Description of the machine, for records of training speed."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Return what a record of speed must contain: device, number of threads, versions and system."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()
    return {
        "device": name,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def cpu_name() -> str:
    """Return the processor's name as reported by the system."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return model or platform.processor() or platform.machine()
