"""Networks by torch.compile; the compiled code is kept for later processes."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import torch
from torch import nn

from velogan.files import private_folder


def compiled(net: nn.Module, *, cache: Path) -> nn.Module:
    """`net` compiled for each input shape, over the same weights.

    The compiled code is kept in `cache` for later processes; TORCHINDUCTOR_CACHE_DIR names another folder.
    ValueError where other users may write to `cache`: see `files.private_folder`.
    """
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(private_folder(cache))
    return torch.compile(net, dynamic=False)  # pyright: ignore[reportReturnType]


def compiler_missing(device: torch.device) -> str:
    """What torch.compile needs for `device` and does not find here; empty if it has everything."""
    if not (os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")):
        return "a C++ compiler"
    return "Triton" if device.type == "cuda" and importlib.util.find_spec("triton") is None else ""
