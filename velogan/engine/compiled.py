"""Networks by torch.compile; the compiled code is kept for later processes."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import torch
from torch import nn

from velogan.files import private_folder

RECOMPILES = 128
"""How often torch may compile: for each network, input shape and type of numbers, and with and without gradients.

It counts all networks of a process together, since they share the code of `nn.Module.__call__`, and allows 8. Beyond
its limit it warns, and computes the rest without compiling.
"""


def compiled(net: nn.Module, *, cache: Path) -> nn.Module:
    """`net` compiled for each input shape, over the same weights.

    The compiled code is kept in `cache` for later processes; TORCHINDUCTOR_CACHE_DIR names another folder.
    ValueError where other users may write to `cache`: see `files.private_folder`.
    """
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(private_folder(cache))
    from torch._dynamo import config as limits  # takes a second, so only where it is needed

    limits.recompile_limit = max(RECOMPILES, limits.recompile_limit)
    return torch.compile(net, dynamic=False)  # pyright: ignore[reportReturnType]


def compiler_missing(device: torch.device) -> str:
    """What torch.compile needs for `device` and does not find here; empty if it has everything."""
    if not (os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")):
        return "a C++ compiler"
    return "Triton" if device.type == "cuda" and importlib.util.find_spec("triton") is None else ""
