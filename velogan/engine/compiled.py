"""Networks by torch.compile, with what it compiled kept between processes."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import torch
from torch import nn

from velogan.files import private_folder


def compiled(net: nn.Module, *, cache: Path) -> nn.Module:
    """`net` compiled anew for every shape it meets, over the same weights.

    What is compiled lies in `cache`, where later processes find it; TORCHINDUCTOR_CACHE_DIR names another place.
    ValueError where other users may write to `cache`: see `files.private_folder`.
    """
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(private_folder(cache))
    return torch.compile(net, dynamic=False)  # pyright: ignore[reportReturnType]


def compiler_missing(device: torch.device) -> str:
    """What torch.compile lacks here to compile for `device`; nothing where it lacks nothing."""
    if not (os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")):
        return "a C++ compiler"
    return "Triton" if device.type == "cuda" and importlib.util.find_spec("triton") is None else ""
