"""Norm or none, activation, residual add and reflection padding as one operation, with its gradient.

What computes it is a `NormKernels`: compiled C++ on CPUs (`native.py`), Triton on GPUs (`triton_norms.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor


class NormKernels(ABC):
    """The operation on channels-last tensors `(N, C, H, W)`."""

    on_gpu: ClassVar[bool]

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

    @abstractmethod
    def plain_forward(self, x: Tensor, residual: Tensor | None, *, slope: float, pad: int) -> Tensor:
        """The padded result of `plain`."""

    @abstractmethod
    def plain_backward(self, g: Tensor, inner: Tensor | None, out: Tensor | None, *, slope: float, pad: int) -> Tensor:
        """The gradient of `x`, which is also the residual's. `out` is the result, given if there is an activation."""

    @abstractmethod
    def forward(
        self, x: Tensor, residual: Tensor | None, *, slope: float, pad: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The padded result of `norm`, and mean and reciprocal deviation `(N, C)` for the backward pass."""

    @abstractmethod
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


def empty(n: int, c: int, h: int, w: int, *, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """`(N, C, H, W)`, dense and channels-last for any sizes; not a view, so that autograd adds gradients in place."""
    return torch.empty_strided((n, c, h, w), (h * w * c, 1, w * c, c), dtype=dtype, device=device)


def pointer(x: Tensor | None) -> int | None:
    """What native code takes for a tensor."""
    return None if x is None else x.data_ptr()


def dense(x: Tensor) -> Tensor:
    """`x` with the strides that the kernels need. If a side is 1, torch calls other strides channels-last, too."""
    n, c, h, w = x.shape
    if x.stride() == (h * w * c, 1, w * c, c):
        return x
    return empty(n, c, h, w, dtype=x.dtype, device=x.device).copy_(x)


def _rows(x: Tensor, like: Tensor) -> Tensor:
    """`x` in the type of `like`, with adjacent pixels in each row; between rows and images there may be gaps."""
    if x.dtype == like.dtype and x.stride()[1] == 1 and x.stride()[3] == x.shape[1]:
        return x
    return dense(x.to(like.dtype))


def _inner(out: Tensor, pad: int) -> Tensor:
    """A padded result without its padding, as a view."""
    height, width = out.shape[2:]
    return out.detach()[:, :, pad : height - pad, pad : width - pad]


def _gradients(
    grads: Sequence[Tensor | None], shape: torch.Size, dtype: torch.dtype, device: torch.device, *, pad: int
) -> tuple[Tensor, Tensor | None]:
    """Those of both results, the padded one's as zeros where it has none; `shape` and the rest are the input's."""
    padded, inner = (None if grad is None else dense(grad.to(dtype)) for grad in grads)
    if padded is None:
        n, c, h, w = shape
        padded = empty(n, c, h + 2 * pad, w + 2 * pad, dtype=dtype, device=device).zero_()
    return padded, inner


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernels: NormKernels, x: Tensor, residual: Tensor | None, slope: float, pad: int, eps: float):
        x = dense(x)
        residual = _rows(residual, x) if residual is not None else None
        out, mean, rstd = kernels.forward(x, residual, slope=slope, pad=pad, eps=eps)
        ctx.save_for_backward(x, mean, rstd)
        ctx.set_materialize_grads(False)
        ctx.kernels, ctx.slope, ctx.pad, ctx.residual = kernels, slope, pad, residual is not None
        return out, _inner(out, pad)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads: Tensor | None):
        x, mean, rstd = ctx.saved_tensors
        padded, inner = _gradients(grads, x.shape, x.dtype, x.device, pad=ctx.pad)
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
        ctx.given = x.shape, x.dtype, x.device
        return out, _inner(out, pad)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads: Tensor | None):
        padded, inner = _gradients(grads, *ctx.given, pad=ctx.pad)
        out, *_ = (*ctx.saved_tensors, None)  # asked for once: it may be computed for this
        dx = ctx.kernels.plain_backward(padded, inner, out, slope=ctx.slope, pad=ctx.pad)
        return None, dx, dx if ctx.residual else None, None, None
