"""The device that a step is computed on."""

from __future__ import annotations

import torch

from velogan.engine.config import EngineConfig


def resolve_device(asked: str) -> torch.device:
    """The device for `asked`; `auto` takes an accelerator where there is one. ValueError where it is missing."""
    if asked == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(asked)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"engine.device={asked} cannot be used here ({str(error).splitlines()[0]}): choose auto"
        ) from error
    return device


def synchronise(device: torch.device) -> None:
    """Wait until `device` has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_for(config: EngineConfig) -> torch.device:
    """The device that `config` asks for. ValueError if it cannot be used, or cannot do what else `config` asks for.

    A GPU that has a number becomes the current one, on which Triton launches its kernels.
    """
    device = resolve_device(config.device)
    if device.type != "cuda":
        if config.captures:
            raise ValueError(
                f"engine.mode={config.mode} needs a CUDA device, and this is {device}: set engine.mode=auto"
            )
    elif device.index is not None:
        torch.cuda.set_device(device)
    return device


def set_threads(config: EngineConfig) -> None:
    """Let PyTorch compute with as many threads as `config` says, if it says a number."""
    if config.threads:
        torch.set_num_threads(config.threads)
