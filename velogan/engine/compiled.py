"""Networks compiled by torch.compile, with a cache on disk."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import torch
from torch import nn

from velogan.files import create_private_folder

MAX_COMPILATIONS = 128
"""Value of torch's recompile_limit. A network is compiled for each input shape and dtype, with and without gradients.

The limit applies to all networks of a process together, since they share the code of `nn.Module.__call__`. Torch's
default is 8; after that it warns and does not compile.
"""


def compile_network(net: nn.Module, *, cache: Path) -> nn.Module:
    """Return a module that compiles `net` for each input shape, and shares its weights.

    Compiled code is cached for later processes in the folder `cache`, or in TORCHINDUCTOR_CACHE_DIR if that is set.
    Raises ValueError if other users may write to `cache`: see `files.create_private_folder`.
    """
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(create_private_folder(cache))
    from torch._dynamo import config as dynamo_config  # takes a second

    dynamo_config.recompile_limit = max(MAX_COMPILATIONS, dynamo_config.recompile_limit)
    return torch.compile(net, dynamic=False)  # pyright: ignore[reportReturnType]


def find_missing_compiler(device: torch.device) -> str:
    """Return the name of the compiler that torch.compile lacks for `device`; empty if none is missing."""
    if not (os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")):
        return "a C++ compiler"
    return "Triton" if device.type == "cuda" and importlib.util.find_spec("triton") is None else ""
