"""Load native CPU code, and bind its operation that fuses norm, activation, residual add and padding.

The code comes compiled with a wheel, or is compiled once by g++ on this machine. If neither is possible, `load_kernels`
returns None and the plain layers run. torch.compile would fuse the same operations, but compiles for a hundred seconds;
g++ takes one.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from velogan.files import check_not_shared, create_private_folder
from velogan.kernels.isa import HERE, LEVEL_VARIABLE, LIBRARIES, compile_command, cpu_flags, find_prebuilt
from velogan.kernels.norms import NormKernels, Saved, empty_channels_last


def load_kernels(cache: Path) -> NormKernels | None:
    """Load the fused norms for CPUs, compiled into `cache` if needed; None if they cannot be compiled or loaded."""
    library = load_library("norms", cache=cache)
    return None if library is None else CppNorms(library)


def load_library(name: str, *, cache: Path) -> ctypes.CDLL | None:
    """Load a library of `isa.LIBRARIES` from the wheel, or compile it for this machine into `cache`.

    Returns None if both are impossible. Raises ValueError if other users may write to `cache` or the library
    (`files.create_private_folder`), or if VELOGAN_CPU_LEVEL is wrong.
    """
    for file in find_prebuilt(name):
        with suppress(OSError):
            return ctypes.CDLL(str(file))
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if not compiler or platform.machine() not in ("x86_64", "AMD64", "aarch64"):
        return None
    command = compile_command(compiler, name, level=os.environ.get(LEVEL_VARIABLE) or None)
    hash_input = f"{command} {platform.processor()} {cpu_flags()}".encode()
    for source in (*(HERE / source for source in LIBRARIES[name]), *sorted(HERE.glob("*.h"))):
        hash_input += source.read_bytes()
    library = cache / f"{name}-{hashlib.sha256(hash_input).hexdigest()[:16]}.so"
    try:
        create_private_folder(cache)
        if not library.exists():
            _build(command, library)
        check_not_shared(library)
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.CalledProcessError):
        return None


def bind(library: ctypes.CDLL, name: str, pointer_count: int, size_count: int) -> Callable[..., None]:
    """Return the C function `name`; its arguments are tensors by pointer, integers, and the number of threads."""
    function = getattr(library, name)
    function.argtypes = [ctypes.c_void_p] * pointer_count + [ctypes.c_int64] * size_count + [ctypes.c_int]
    return function


def _build(command: list[str], library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        tmp_path = Path(folder) / "kernels.so"
        subprocess.run([*command, "-o", str(tmp_path)], check=True, capture_output=True)
        tmp_path.chmod(0o700)
        tmp_path.replace(library)  # atomic: two processes may compile at once


class CppNorms(NormKernels):
    """Kernels of the compiled library, on CPUs. Tensors are float32 or bfloat16."""

    on_gpu = False

    def __init__(self, library: ctypes.CDLL):
        pointer, size = ctypes.c_void_p, ctypes.c_int64
        real, flag = ctypes.c_float, ctypes.c_int
        self._forward = library.norm_forward
        self._forward.argtypes = [pointer] * 2 + [size] * 2 + [pointer] * 3 + [size] * 5 + [real, real, flag, flag]
        self._backward = library.norm_backward
        self._backward.argtypes = [pointer] * 7 + [size] * 5 + [real, flag, flag]
        self._plain_forward, self._plain_backward = library.plain_forward, library.plain_backward
        self._plain_forward.argtypes = [pointer] * 2 + [size] * 2 + [pointer] + [size] * 5 + [real, flag, flag]
        self._plain_backward.argtypes = [pointer] * 4 + [size] * 5 + [real, flag, flag]

    def epilogue_forward(self, x: Tensor, residual: Tensor | None, *, slope: float, pad: int) -> Tensor:
        n, c, h, w = x.shape
        out = empty_channels_last(n, c, h + 2 * pad, w + 2 * pad, dtype=x.dtype)
        address, strides = (None, (0, 0)) if residual is None else (residual.data_ptr(), residual.stride()[::2])
        sizes = (n, h, w, c, pad, slope, _is_bf16(x), torch.get_num_threads())
        self._plain_forward(x.data_ptr(), address, *strides, out.data_ptr(), *sizes)
        return out

    def epilogue_backward(
        self, g: Tensor, unpadded: Tensor | None, out: Tensor | None, *, slope: float, pad: int
    ) -> Tensor:
        n, c, h, w = (*g.shape[:2], *(side - 2 * pad for side in g.shape[2:]))
        dx = empty_channels_last(n, c, h, w, dtype=g.dtype)
        tensors = [t.data_ptr() if t is not None else None for t in (g, unpadded, out, dx)]
        self._plain_backward(*tensors, n, h, w, c, pad, slope, _is_bf16(g), torch.get_num_threads())
        return dx

    def forward(
        self, x: Tensor, residual: Tensor | None, *, slope: float, pad: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        n, c, h, w = x.shape
        out = empty_channels_last(n, c, h + 2 * pad, w + 2 * pad, dtype=x.dtype)
        mean, rstd = torch.empty(n, c), torch.empty(n, c)
        address, strides = (None, (0, 0)) if residual is None else (residual.data_ptr(), residual.stride()[::2])
        self._forward(
            *(x.data_ptr(), address, *strides, out.data_ptr(), mean.data_ptr(), rstd.data_ptr()),
            *(n, h, w, c, pad, slope, eps, _is_bf16(x), torch.get_num_threads()),
        )
        return out, mean, rstd

    def backward(
        self, g: Tensor, unpadded: Tensor | None, *, saved: Saved, slope: float, pad: int, has_residual: bool
    ) -> tuple[Tensor, Tensor | None]:
        x, mean, rstd = saved
        n, c, h, w = x.shape
        dx = empty_channels_last(n, c, h, w, dtype=x.dtype)
        dresidual = empty_channels_last(n, c, h, w, dtype=x.dtype) if has_residual else None
        tensors = [t.data_ptr() if t is not None else None for t in (g, unpadded, x, mean, rstd, dx, dresidual)]
        self._backward(*tensors, n, h, w, c, pad, slope, _is_bf16(x), torch.get_num_threads())
        return dx, dresidual


def _is_bf16(x: Tensor) -> int:
    return int(x.dtype == torch.bfloat16)
