"""Norm or none, activation, residual add and padding as one native CPU operation.

It comes compiled with a wheel, or is compiled once with the machine's g++. torch.compile would fuse the same
operations, but compiles for a hundred seconds; this takes one. Without either `load_kernels` returns None and the plain
layers run.
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

from velogan.files import check_not_shared, private_folder
from velogan.kernels.levels import HERE, LIBRARIES, SETTING, built, command, cpu_flags
from velogan.kernels.norms import NormKernels, empty


def load_kernels(cache: Path) -> NormKernels | None:
    """The kernels, built into `cache` if needed; None if they cannot be built or loaded."""
    library = load_library("norms", cache=cache)
    return None if library is None else CppNorms(library)


def load_library(name: str, *, cache: Path) -> ctypes.CDLL | None:
    """A library of `levels.LIBRARIES`: of the wheel, or else compiled for this machine by g++ and kept in `cache`.

    None if there is neither. ValueError if other users may write to `cache` or the library (`files.private_folder`), or
    if the setting of a level is wrong.
    """
    for file in built(name):
        with suppress(OSError):
            return ctypes.CDLL(str(file))
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if not compiler or platform.machine() not in ("x86_64", "AMD64", "aarch64"):
        return None
    words = command(compiler, name, level=os.environ.get(SETTING) or None)
    recipe = f"{words} {platform.processor()} {cpu_flags()}".encode()
    for source in (*(HERE / source for source in LIBRARIES[name]), *sorted(HERE.glob("*.h"))):
        recipe += source.read_bytes()
    library = cache / f"{name}-{hashlib.sha256(recipe).hexdigest()[:16]}.so"
    try:
        private_folder(cache)
        if not library.exists():
            _build(words, library)
        check_not_shared(library)
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.CalledProcessError):
        return None


def bind(library: ctypes.CDLL, name: str, pointers: int, sizes: int) -> Callable[..., None]:
    """The function `name`, which takes so many tensors, then so many whole numbers, then the number of threads."""
    function = getattr(library, name)
    function.argtypes = [ctypes.c_void_p] * pointers + [ctypes.c_int64] * sizes + [ctypes.c_int]
    return function


def _build(words: list[str], library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / "kernels.so"
        subprocess.run([*words, "-o", str(made)], check=True, capture_output=True)
        made.chmod(0o700)
        made.replace(library)  # atomic: two processes may build at once


class CppNorms(NormKernels):
    """Those of the compiled library, on CPUs. Tensors are float32 or bfloat16."""

    on_gpu = False

    def __init__(self, library: ctypes.CDLL):
        pointer, whole, real, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
        self._forward = library.norm_forward
        self._forward.argtypes = [pointer] * 2 + [whole] * 2 + [pointer] * 3 + [whole] * 5 + [real, real, flag, flag]
        self._backward = library.norm_backward
        self._backward.argtypes = [pointer] * 7 + [whole] * 5 + [real, flag, flag]
        self._plain_forward, self._plain_backward = library.plain_forward, library.plain_backward
        self._plain_forward.argtypes = [pointer] * 2 + [whole] * 2 + [pointer] + [whole] * 5 + [real, flag, flag]
        self._plain_backward.argtypes = [pointer] * 4 + [whole] * 5 + [real, flag, flag]

    def plain_forward(self, x: Tensor, residual: Tensor | None, *, slope: float, pad: int) -> Tensor:
        n, c, h, w = x.shape
        out = empty(n, c, h + 2 * pad, w + 2 * pad, dtype=x.dtype)
        extra, strides = (None, (0, 0)) if residual is None else (residual.data_ptr(), residual.stride()[::2])
        sizes = (n, h, w, c, pad, slope, _half(x), torch.get_num_threads())
        self._plain_forward(x.data_ptr(), extra, *strides, out.data_ptr(), *sizes)
        return out

    def plain_backward(self, g: Tensor, inner: Tensor | None, out: Tensor | None, *, slope: float, pad: int) -> Tensor:
        n, c, h, w = (*g.shape[:2], *(side - 2 * pad for side in g.shape[2:]))
        dx = empty(n, c, h, w, dtype=g.dtype)
        tensors = [t.data_ptr() if t is not None else None for t in (g, inner, out, dx)]
        self._plain_backward(*tensors, n, h, w, c, pad, slope, _half(g), torch.get_num_threads())
        return dx

    def forward(
        self, x: Tensor, residual: Tensor | None, *, slope: float, pad: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        n, c, h, w = x.shape
        out = empty(n, c, h + 2 * pad, w + 2 * pad, dtype=x.dtype)
        mean, rstd = torch.empty(n, c), torch.empty(n, c)
        extra, strides = (None, (0, 0)) if residual is None else (residual.data_ptr(), residual.stride()[::2])
        self._forward(
            *(x.data_ptr(), extra, *strides, out.data_ptr(), mean.data_ptr(), rstd.data_ptr()),
            *(n, h, w, c, pad, slope, eps, _half(x), torch.get_num_threads()),
        )
        return out, mean, rstd

    def backward(
        self,
        g: Tensor,
        inner: Tensor | None,
        *,
        saved: tuple[Tensor, Tensor, Tensor],
        slope: float,
        pad: int,
        residual: bool,
    ) -> tuple[Tensor, Tensor | None]:
        x, mean, rstd = saved
        n, c, h, w = x.shape
        dx = empty(n, c, h, w, dtype=x.dtype)
        dresidual = empty(n, c, h, w, dtype=x.dtype) if residual else None
        tensors = [t.data_ptr() if t is not None else None for t in (g, inner, x, mean, rstd, dx, dresidual)]
        self._backward(*tensors, n, h, w, c, pad, slope, _half(x), torch.get_num_threads())
        return dx, dresidual


def _half(x: Tensor) -> int:
    return int(x.dtype == torch.bfloat16)
