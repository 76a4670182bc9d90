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
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from velogan.files import private_folder, refuse_shared
from velogan.kernels.levels import HERE, LIBRARIES, asked, built, command, cpu_flags


def load_kernels(cache: Path) -> NormKernels | None:
    """The kernels, built into `cache` if needed; None if they cannot be built or loaded."""
    library = load_library("norms", cache=cache)
    return None if library is None else NormKernels(library)


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
    words = command(compiler, name, level=asked())
    recipe = f"{words} {platform.processor()} {cpu_flags()}".encode()
    for source in (*(HERE / source for source in LIBRARIES[name]), *sorted(HERE.glob("*.h"))):
        recipe += source.read_bytes()
    library = cache / f"{name}-{hashlib.sha256(recipe).hexdigest()[:16]}.so"
    try:
        private_folder(cache)
        if not library.exists():
            _build(words, library)
        refuse_shared(library)
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.CalledProcessError):
        return None


def _build(words: list[str], library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / "kernels.so"
        subprocess.run([*words, "-o", str(made)], check=True, capture_output=True)
        made.chmod(0o700)
        made.replace(library)  # atomic: two processes may build at once


class NormKernels:
    """Binds the compiled library. Tensors are channels-last `(N, C, H, W)`, float32 or bfloat16."""

    def __init__(self, library: ctypes.CDLL):
        pointer, whole, real, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
        self._forward = library.norm_forward
        self._forward.argtypes = [pointer] * 2 + [whole] * 2 + [pointer] * 3 + [whole] * 5 + [real, real, flag, flag]
        self._backward = library.norm_backward
        self._backward.argtypes = [pointer] * 7 + [whole] * 5 + [real, flag, flag]
        self._plain_forward, self._plain_backward = library.plain_forward, library.plain_backward
        self._plain_forward.argtypes = [pointer] * 2 + [whole] * 2 + [pointer] + [whole] * 5 + [real, flag, flag]
        self._plain_backward.argtypes = [pointer] * 4 + [whole] * 5 + [real, flag, flag]

    def norm(
        self,
        x: Tensor,
        *,
        residual: Tensor | None = None,
        slope: float = 1.0,
        pad: int = 0,
        eps: float = 1e-5,
    ) -> tuple[Tensor, Tensor]:
        """Instance norm of `x` (Ulyanov et al. 2016, eq. 4), then leaky ReLU of `slope` (0 is ReLU, 1 is none) or
        `+ residual`, then reflection padding of `pad` pixels.

        Returns the result, `(N, C, H + 2 pad, W + 2 pad)` in x's type, and the same without its padding: a view to use
        as a later `residual`. The backward pass of this operation adds the gradient of that view at no extra cost.
        """
        return _Norm.apply(self, x, residual, slope, pad, eps)  # pyright: ignore[reportReturnType]

    def plain(
        self, x: Tensor, *, residual: Tensor | None = None, slope: float = 1.0, pad: int = 0
    ) -> tuple[Tensor, Tensor]:
        """The same as `norm`, without the norm. `slope` is not negative, and is 1 with a `residual`."""
        return _Plain.apply(self, x, residual, slope, pad)  # pyright: ignore[reportReturnType]

    def plain_forward(self, x: Tensor, residual: Tensor | None, *, slope: float, pad: int) -> Tensor:
        """The padded result of `plain`."""
        n, c, h, w = x.shape
        out = empty(n, c, h + 2 * pad, w + 2 * pad, dtype=x.dtype)
        extra, strides = (None, (0, 0)) if residual is None else (residual.data_ptr(), residual.stride()[::2])
        sizes = (n, h, w, c, pad, slope, _half(x), torch.get_num_threads())
        self._plain_forward(x.data_ptr(), extra, *strides, out.data_ptr(), *sizes)
        return out

    def plain_backward(self, g: Tensor, inner: Tensor | None, out: Tensor | None, *, slope: float, pad: int) -> Tensor:
        """The gradient of `x`, which is also the residual's. `out` is the result, given if there is an activation."""
        n, c, h, w = (*g.shape[:2], *(side - 2 * pad for side in g.shape[2:]))
        dx = empty(n, c, h, w, dtype=g.dtype)
        tensors = [t.data_ptr() if t is not None else None for t in (g, inner, out, dx)]
        self._plain_backward(*tensors, n, h, w, c, pad, slope, _half(g), torch.get_num_threads())
        return dx

    def forward(
        self, x: Tensor, residual: Tensor | None, *, slope: float, pad: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The padded result of `norm`, and mean and reciprocal deviation `(N, C)` for the backward pass."""
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
        """Gradients of `x` and of the residual, if any, from those of `norm`'s results: `g` and `inner`."""
        x, mean, rstd = saved
        n, c, h, w = x.shape
        dx = empty(n, c, h, w, dtype=x.dtype)
        dresidual = empty(n, c, h, w, dtype=x.dtype) if residual else None
        tensors = [t.data_ptr() if t is not None else None for t in (g, inner, x, mean, rstd, dx, dresidual)]
        self._backward(*tensors, n, h, w, c, pad, slope, _half(x), torch.get_num_threads())
        return dx, dresidual


def empty(n: int, c: int, h: int, w: int, *, dtype: torch.dtype) -> Tensor:
    """`(N, C, H, W)`, dense and channels-last for any sizes; not a view, so that autograd adds gradients in place."""
    return torch.empty_strided((n, c, h, w), (h * w * c, 1, w * c, c), dtype=dtype)


def _half(x: Tensor) -> int:
    return int(x.dtype == torch.bfloat16)


def dense(x: Tensor) -> Tensor:
    """`x` with the strides that the kernels need. If a side is 1, torch calls other strides channels-last, too."""
    n, c, h, w = x.shape
    if x.stride() == (h * w * c, 1, w * c, c):
        return x
    return empty(n, c, h, w, dtype=x.dtype).copy_(x)


def _rows(x: Tensor, like: Tensor) -> Tensor:
    """`x` in the type of `like`, with adjacent pixels in each row; between rows and images there may be gaps."""
    if x.dtype == like.dtype and x.stride()[1] == 1 and x.stride()[3] == x.shape[1]:
        return x
    return dense(x.to(like.dtype))


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernels: NormKernels, x: Tensor, residual: Tensor | None, slope: float, pad: int, eps: float):
        x = dense(x)
        residual = _rows(residual, x) if residual is not None else None
        out, mean, rstd = kernels.forward(x, residual, slope=slope, pad=pad, eps=eps)
        ctx.save_for_backward(x, mean, rstd)
        ctx.set_materialize_grads(False)
        ctx.kernels, ctx.slope, ctx.pad, ctx.residual = kernels, slope, pad, residual is not None
        height, width = x.shape[2:]
        return out, out.detach()[:, :, pad : pad + height, pad : pad + width]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads: Tensor | None):
        x, mean, rstd = ctx.saved_tensors
        padded, inner = (None if grad is None else dense(grad.to(x.dtype)) for grad in grads)
        if padded is None:
            n, c, h, w = x.shape
            padded = empty(n, c, h + 2 * ctx.pad, w + 2 * ctx.pad, dtype=x.dtype).zero_()
        dx, dresidual = ctx.kernels.backward(
            padded, inner, saved=(x, mean, rstd), slope=ctx.slope, pad=ctx.pad, residual=ctx.residual
        )
        return None, dx, dresidual, None, None, None


class _Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernels: NormKernels, x: Tensor, residual: Tensor | None, slope: float, pad: int):
        x = dense(x)
        residual = _rows(residual, x) if residual is not None else None
        out = kernels.plain_forward(x, residual, slope=slope, pad=pad)
        ctx.save_for_backward(*([out] if slope != 1 else []))
        ctx.set_materialize_grads(False)
        ctx.kernels, ctx.slope, ctx.pad, ctx.residual = kernels, slope, pad, residual is not None
        ctx.shape, ctx.dtype = x.shape, x.dtype
        height, width = x.shape[2:]
        return out, out.detach()[:, :, pad : pad + height, pad : pad + width]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads: Tensor | None):
        padded, inner = (None if grad is None else dense(grad.to(ctx.dtype)) for grad in grads)
        pad = ctx.pad
        if padded is None:
            n, c, h, w = ctx.shape
            padded = empty(n, c, h + 2 * pad, w + 2 * pad, dtype=ctx.dtype).zero_()
        out, *_ = (*ctx.saved_tensors, None)  # asked for once: it may be computed for this
        dx = ctx.kernels.plain_backward(padded, inner, out, slope=ctx.slope, pad=pad)
        return None, dx, dx if ctx.residual else None, None, None
