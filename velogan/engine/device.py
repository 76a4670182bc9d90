"""The device that a step is computed on."""

from __future__ import annotations

import torch

from velogan.engine.config import EngineConfig


def resolve_device(name: str) -> torch.device:
    """Return the device `name`; `auto`: an accelerator, if any, else the CPU. Raises ValueError if not available."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"engine.device={name}: not available ({reason}); choose auto") from error
    return device


def select_device(config: EngineConfig) -> torch.device:
    """Return the device of `config`; if it is `cuda:N`, make it the current device, which Triton launches on.

    Raises ValueError if the device is not available or does not support the configured mode.
    """
    device = resolve_device(config.device)
    if config.captures and device.type != "cuda":
        raise ValueError(f"engine.mode={config.mode}: needs a CUDA device, not {device}; set engine.mode=auto")
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return device


def synchronise(device: torch.device) -> None:
    """Wait until a CUDA `device` has finished its work; do nothing for other devices."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def set_threads(config: EngineConfig) -> None:
    """Set the number of PyTorch's CPU threads, if `config` has one."""
    if config.threads:
        torch.set_num_threads(config.threads)
