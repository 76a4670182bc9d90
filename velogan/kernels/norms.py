"""Compute optional instance norm, activation, residual add and reflection padding as one operation, with its gradient.

A `NormKernels` computes it: compiled C++ on CPUs (`native.py`), Triton on GPUs (`triton_norms.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

Saved = tuple[Tensor, Tensor, Tensor]
"""The tensors that the backward pass needs: the input, its mean and its reciprocal standard deviation, `(N, C)`."""


class NormKernels(ABC):
    """Kernels for the fused operation on channels-last tensors `(N, C, H, W)`."""

    on_gpu: ClassVar[bool]

    def norm(
        self, x: Tensor, *, residual: Tensor | None = None, slope: float = 1.0, pad: int = 0, eps: float = 1e-5
    ) -> tuple[Tensor, Tensor]:
        """Return the normalised, activated and padded `x`, and a view of the result without padding.

        x: `(N, C, H, W)`, normalised per image and channel (Ulyanov et al. 2016, eq. 4)
        residual: `(N, C, H, W)`, added instead of an activation
        slope: negative slope of the leaky ReLU; 0 is ReLU, 1 is no activation
        pad: pixels of reflection padding on each side
        eps: added to the variance

        The result is `(N, C, H + 2 pad, W + 2 pad)` in the type of `x`. The view is for use as a later `residual`: the
        backward pass of this operation adds its gradient at no extra cost.
        """
        return _Norm.apply(self, x, residual, slope, pad, eps)  # pyright: ignore[reportReturnType]

    def epilogue(
        self, x: Tensor, *, residual: Tensor | None = None, slope: float = 1.0, pad: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Compute `norm` without the normalisation. `slope` must be at least 0, and 1 if there is a `residual`."""
        return _Epilogue.apply(self, x, residual, slope, pad)  # pyright: ignore[reportReturnType]

    @abstractmethod
    def epilogue_forward(self, x: Tensor, residual: Tensor | None, *, slope: float, pad: int) -> Tensor:
        """Return the padded result of `epilogue`."""

    @abstractmethod
    def epilogue_backward(
        self, g: Tensor, unpadded: Tensor | None, out: Tensor | None, *, slope: float, pad: int
    ) -> Tensor:
        """Return the gradient of `x`, which is also the residual's.

        `g` and `unpadded` are the gradients of `epilogue`'s two results; `out` is the first result if it is activated.
        """

    @abstractmethod
    def forward(
        self, x: Tensor, residual: Tensor | None, *, slope: float, pad: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the padded result of `norm`, and mean and reciprocal standard deviation `(N, C)` for `backward`."""

    @abstractmethod
    def backward(
        self, g: Tensor, unpadded: Tensor | None, *, saved: Saved, slope: float, pad: int, has_residual: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of `x` and the residual, if any. `g`, `unpadded`: gradients of `norm`'s two results."""


def empty_channels_last(
    n: int, c: int, h: int, w: int, *, dtype: torch.dtype, device: torch.device | None = None
) -> Tensor:
    """Return an uninitialised dense channels-last tensor `(N, C, H, W)`; not a view, so that autograd adds in place."""
    return torch.empty_strided((n, c, h, w), (h * w * c, 1, w * c, c), dtype=dtype, device=device)


def data_pointer(x: Tensor | None) -> int | None:
    """Return the address of a tensor for native code; None for None."""
    return None if x is None else x.data_ptr()


def to_channels_last(x: Tensor) -> Tensor:
    """Return `x` with the channels-last strides that the kernels need; torch accepts others, too, if a side is 1."""
    n, c, h, w = x.shape
    if x.stride() == (h * w * c, 1, w * c, c):
        return x
    return empty_channels_last(n, c, h, w, dtype=x.dtype, device=x.device).copy_(x)


def _with_dense_rows(x: Tensor, like: Tensor) -> Tensor:
    """Return `x` in the type of `like`, with adjacent pixels in each row; gaps between rows and images are allowed."""
    if x.dtype == like.dtype and x.stride()[1] == 1 and x.stride()[3] == x.shape[1]:
        return x
    return to_channels_last(x.to(like.dtype))


def _without_padding(out: Tensor, pad: int) -> Tensor:
    height, width = out.shape[2:]
    return out.detach()[:, :, pad : height - pad, pad : width - pad]


def _output_gradients(
    grads: Sequence[Tensor | None], shape: torch.Size, dtype: torch.dtype, device: torch.device, *, pad: int
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of the padded and unpadded outputs; zeros for the padded one if it has no gradient.

    `shape`, `dtype` and `device` describe the input.
    """
    padded, unpadded = (None if grad is None else to_channels_last(grad.to(dtype)) for grad in grads)
    if padded is None:
        n, c, h, w = shape
        padded = empty_channels_last(n, c, h + 2 * pad, w + 2 * pad, dtype=dtype, device=device).zero_()
    return padded, unpadded


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernels: NormKernels, x: Tensor, residual: Tensor | None, slope: float, pad: int, eps: float):
        x = to_channels_last(x)
        residual = _with_dense_rows(residual, x) if residual is not None else None
        out, mean, rstd = kernels.forward(x, residual, slope=slope, pad=pad, eps=eps)
        ctx.save_for_backward(x, mean, rstd)
        ctx.set_materialize_grads(False)
        ctx.kernels, ctx.slope = kernels, slope
        ctx.pad, ctx.has_residual = pad, residual is not None
        return out, _without_padding(out, pad)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads: Tensor | None):
        x, mean, rstd = ctx.saved_tensors
        padded, unpadded = _output_gradients(grads, x.shape, x.dtype, x.device, pad=ctx.pad)
        dx, dresidual = ctx.kernels.backward(
            padded, unpadded, saved=(x, mean, rstd), slope=ctx.slope, pad=ctx.pad, has_residual=ctx.has_residual
        )
        return None, dx, dresidual, None, None, None


class _Epilogue(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernels: NormKernels, x: Tensor, residual: Tensor | None, slope: float, pad: int):
        x = to_channels_last(x)
        residual = _with_dense_rows(residual, x) if residual is not None else None
        out = kernels.epilogue_forward(x, residual, slope=slope, pad=pad)
        ctx.save_for_backward(*([out] if slope != 1 else []))
        ctx.set_materialize_grads(False)
        ctx.kernels, ctx.slope = kernels, slope
        ctx.pad, ctx.has_residual = pad, residual is not None
        ctx.input_spec = x.shape, x.dtype, x.device
        return out, _without_padding(out, pad)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads: Tensor | None):
        padded, unpadded = _output_gradients(grads, *ctx.input_spec, pad=ctx.pad)
        out, *_ = (*ctx.saved_tensors, None)  # read once: a saved tensor may be recomputed on access
        dx = ctx.kernels.epilogue_backward(padded, unpadded, out, slope=ctx.slope, pad=ctx.pad)
        return None, dx, dx if ctx.has_residual else None, None, None
