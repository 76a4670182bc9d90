"""Bind native float32 convolutions and their gradients, by matrix products, for any CPU.

They replace `Bf16Gemm` on CPUs on which bfloat16 is slow: 3x3 convolutions use Winograd's algorithm F(4x4, 3x3), with
a quarter of the multiplications; other weight gradients avoid PyTorch's, which are slow on channels-last images. Sums
do not depend on the number of threads. Images are `(N, C, H, W)` float32, dense and channels-last.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from velogan.kernels.native import bind, load_library
from velogan.kernels.norms import empty_channels_last


def load_fp32_gemm(cache: Path) -> Fp32Gemm | None:
    """Load the native code, compiled into `cache` if needed; None if that fails."""
    library = load_library("fp32_gemm", cache=cache)
    return None if library is None else Fp32Gemm(library)


class Fp32Gemm:
    """Float32 convolutions of the compiled library, and their gradients."""

    dtype = torch.float32
    block = 32
    """Numbers of channels must be multiples of this, except in Winograd convolutions."""
    min_useful_channels = 64
    """With fewer channels the gain is so small that repeated measurements, and so repeated runs, might differ."""

    def __init__(self, library: ctypes.CDLL):
        self._size = library.winograd32_size
        self._size.argtypes, self._size.restype = [ctypes.c_int64] * 2, ctypes.c_int64
        self._winograd_weights = bind(library, "winograd32_weights", 2, 6)
        self._winograd_convolve = bind(library, "winograd32_convolve", 3, 6)
        self._winograd_gradient = bind(library, "winograd32_gradient", 3, 5)
        self._weight_gradient = bind(library, "weight_gradient32", 3, 10)

    def computes(self, x: Tensor) -> bool:
        """Return whether a convolution of `x` computes in float32: by its dtype, and without a CPU autocast."""
        return x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")

    def supports_winograd(self, kernel: int, dilation: int) -> bool:
        """Return whether `winograd_convolve` supports a square kernel of side `kernel` with this `dilation`."""
        return (kernel, dilation) == (3, 1)

    def winograd_weights(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the `(O, C, 3, 3)` weights themselves, and mirrored ones for the gradient of the input.

        `winograd_convolve` transforms them in each call, since transformed weights are four times as large.
        """
        weight = weight.detach()
        return weight, weight.flip(2, 3).transpose(0, 1)

    def winograd_convolve(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        c_out: int,
        kernel: int = 3,
        dilation: int = 1,
        pad: int = 0,
    ) -> Tensor:
        """Return `F.conv2d(x, weight, bias, padding=pad)` with `c_out` channels; `weight`: of `winograd_weights`."""
        assert self.supports_winograd(kernel, dilation)
        (n, c, h, w), (o, i, *taps) = x.shape, weight.stride()
        threads = torch.get_num_threads()
        transformed = torch.empty(self._size(c, c_out))
        self._winograd_weights(weight.data_ptr(), transformed.data_ptr(), c, c_out, i, o, *taps, threads)
        result = empty_channels_last(n, c_out, h + 2 * pad - 2, w + 2 * pad - 2, dtype=torch.float32)
        pointers = (x.data_ptr(), transformed.data_ptr(), result.data_ptr())
        self._winograd_convolve(*pointers, n, h, w, c, c_out, pad, threads)
        return result if bias is None else result.add_(bias[:, None, None])

    def winograd_gradient(self, x: Tensor, g: Tensor, *, kernel: int = 3, dilation: int = 1) -> Tensor:
        """Return the gradient of `(O, C, 3, 3)` weights; `x`: input, `g`: output gradient, `(N, O, H - 2, W - 2)`."""
        assert self.supports_winograd(kernel, dilation)
        (n, c, h, w), c_out = x.shape, g.shape[1]
        result = empty_channels_last(c_out, c, 3, 3, dtype=torch.float32)
        pointers = (x.data_ptr(), g.data_ptr(), result.data_ptr())
        self._winograd_gradient(*pointers, n, h, w, c, c_out, torch.get_num_threads())
        return result

    def weight_gradient(self, x: Tensor, g: Tensor, *, kernel: int, stride: int, padding: int) -> Tensor:
        """Return the gradient of `(O, C, kernel, kernel)` weights from the input `x` and output gradient `g`."""
        (n, c, h, w), (_, c_out, rows, columns) = x.shape, g.shape
        result = empty_channels_last(c_out, c, kernel, kernel, dtype=torch.float32)
        pointers, sizes = (x.data_ptr(), g.data_ptr(), result.data_ptr()), (n, h, w, c, rows, columns, c_out)
        self._weight_gradient(*pointers, *sizes, kernel, stride, padding, torch.get_num_threads())
        return result
