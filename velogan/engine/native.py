"""Norm, activation, residual add and padding as one native CPU operation, compiled once with the machine's g++.

The compiler's fusion (torch.compile) does the same work at a hundred seconds of compilation; this takes one. Where
there is no compiler, `load_kernels` returns None and the plain layers run.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor

_FLAGS = "-O3 -march=native -ffp-contract=fast -fno-math-errno -fno-trapping-math -fopenmp -shared -fPIC -std=c++17"


def load_kernels(cache: Path) -> NormKernels | None:
    """The kernels, built into `cache` if they are not there yet; None where they cannot be built or loaded."""
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if not compiler or platform.machine() not in ("x86_64", "AMD64", "aarch64"):
        return None
    source = Path(__file__).with_name("kernels.cpp")
    recipe = f"{compiler} {_FLAGS} {platform.processor()} {_cpu_model()}".encode() + source.read_bytes()
    library = cache / f"kernels-{hashlib.sha256(recipe).hexdigest()[:16]}.so"
    try:
        if not library.exists():
            _build(compiler, source, library)
        return NormKernels(ctypes.CDLL(str(library)))
    except (OSError, subprocess.CalledProcessError):
        return None


def _build(compiler: str, source: Path, library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / "kernels.so"
        subprocess.run([compiler, *_FLAGS.split(), str(source), "-o", str(made)], check=True, capture_output=True)
        made.replace(library)  # atomic: two processes may build at once


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


class NormKernels:
    """The compiled library. Tensors are channels-last `(N, C, H, W)`, float32 or bfloat16."""

    def __init__(self, library: ctypes.CDLL):
        pointer, whole, real, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
        self._forward = library.norm_forward
        self._forward.argtypes = [pointer] * 5 + [whole] * 6 + [real, real, flag, flag]
        self._backward = library.norm_backward
        self._backward.argtypes = [pointer] * 6 + [whole] * 6 + [real, flag, flag]

    def norm(
        self,
        x: Tensor,
        *,
        residual: Tensor | None = None,
        slope: float = 1.0,
        pad: int = 0,
        eps: float = 1e-5,
    ) -> Tensor:
        """Instance norm of `x` (Ulyanov et al. 2016, eq. 4), then leaky ReLU of `slope` (0 is ReLU, 1 is none) or
        `+ residual`, then reflection padding of `pad` pixels.

        `residual` may carry padding of its own, which is not read. Returns `(N, C, H + 2 pad, W + 2 pad)` in x's type.
        """
        return _Norm.apply(self, x, residual, slope, pad, eps)  # pyright: ignore[reportReturnType]

    def forward(
        self, x: Tensor, residual: Tensor | None, *, slope: float, pad: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The result, and mean and reciprocal deviation `(N, C)` for the backward pass."""
        n, c, h, w = x.shape
        out = _empty(n, c, h + 2 * pad, w + 2 * pad, dtype=x.dtype)
        mean, rstd = torch.empty(n, c), torch.empty(n, c)
        rpad = (residual.shape[2] - h) // 2 if residual is not None else 0
        tensors = [t.data_ptr() if t is not None else None for t in (x, residual, out, mean, rstd)]
        self._forward(*tensors, n, h, w, c, pad, rpad, slope, eps, _half(x), torch.get_num_threads())
        return out, mean, rstd

    def backward(
        self, g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, *, slope: float, pad: int, rpad: int | None
    ) -> tuple[Tensor, Tensor | None]:
        """Gradients of `x` and, where `rpad` is given, of the residual with that padding."""
        n, c, h, w = x.shape
        dx, dresidual = _empty(n, c, h, w, dtype=x.dtype), None
        if rpad is not None:
            dresidual = _empty(n, c, h + 2 * rpad, w + 2 * rpad, dtype=x.dtype)
            if rpad:
                dresidual.zero_()
        tensors = [t.data_ptr() if t is not None else None for t in (g, x, mean, rstd, dx, dresidual)]
        self._backward(*tensors, n, h, w, c, pad, rpad or 0, slope, _half(x), torch.get_num_threads())
        return dx, dresidual


def _empty(n: int, c: int, h: int, w: int, *, dtype: torch.dtype) -> Tensor:
    return torch.empty_strided((n, c, h, w), (h * w * c, 1, w * c, c), dtype=dtype)


def _half(x: Tensor) -> int:
    return int(x.dtype == torch.bfloat16)


def _dense(x: Tensor) -> Tensor:
    """`x` with the strides that the kernels walk; torch calls other strides channels-last too where a side is 1."""
    n, c, h, w = x.shape
    if x.stride() == (h * w * c, 1, w * c, c):
        return x
    return _empty(n, c, h, w, dtype=x.dtype).copy_(x)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernels: NormKernels, x: Tensor, residual: Tensor | None, slope: float, pad: int, eps: float):
        x = _dense(x)
        residual = _dense(residual.to(x.dtype)) if residual is not None else None
        out, mean, rstd = kernels.forward(x, residual, slope=slope, pad=pad, eps=eps)
        ctx.save_for_backward(x, mean, rstd)
        ctx.kernels, ctx.slope, ctx.pad = kernels, slope, pad
        ctx.rpad = (residual.shape[2] - x.shape[2]) // 2 if residual is not None else None
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads: Tensor):
        x, mean, rstd = ctx.saved_tensors
        g = _dense(grads[0].to(x.dtype))
        dx, dr = ctx.kernels.backward(g, x, mean, rstd, slope=ctx.slope, pad=ctx.pad, rpad=ctx.rpad)
        return None, dx, dr, None, None, None
