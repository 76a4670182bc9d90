"""Bind native bfloat16 convolutions and their gradients, by matrix products, for CPUs with AVX-512 bfloat16.

On such CPUs they are faster than PyTorch's (benchmarks/LOG.md). Sums are float32 and do not depend on the number of
threads. Images are `(N, C, H, W)` bfloat16, dense and channels-last.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from velogan.kernels.native import bind, load_library
from velogan.kernels.norms import data_pointer, empty_channels_last

BLOCK = 64
"""Numbers of channels must be multiples of this, except in Winograd convolutions and in images of few channels."""


def load_bf16_gemm(cache: Path) -> Bf16Gemm | None:
    """Load the native code, compiled into `cache` if needed; None if that fails or this CPU has no AVX-512 bfloat16."""
    library = load_library("winograd", cache=cache)
    return Bf16Gemm(library) if library is not None and hasattr(library, "winograd_convolve") else None


def computes_in_bf16(x: Tensor) -> bool:
    """Return whether a convolution of `x` computes in bfloat16, by the dtype of `x` or a CPU autocast to bfloat16."""
    return x.dtype == torch.bfloat16 or (
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    )


class Bf16Gemm:
    """Bfloat16 convolutions of the compiled library, and their gradients."""

    dtype = torch.bfloat16
    block = BLOCK
    min_useful_channels = 0

    def __init__(self, library: ctypes.CDLL):
        self.library = library
        self._winograd_weights = bind(library, "winograd_weights", 3, 3)
        self._winograd_convolve = bind(library, "winograd_convolve", 4, 8)
        self._winograd_gradient = bind(library, "winograd_gradient", 3, 7)
        self._weight_gradient = bind(library, "weight_gradient", 3, 10)
        self._few_channel_convolve = bind(library, "thin_convolve", 4, 8)
        self._few_channel_gradient = bind(library, "thin_gradient", 3, 9)

    def computes(self, x: Tensor) -> bool:
        """Return whether a convolution of `x` computes in the precision of this class: see `computes_in_bf16`."""
        return computes_in_bf16(x)

    def supports_winograd(self, kernel: int, dilation: int) -> bool:
        """Return whether `winograd_convolve` supports a square kernel of side `kernel` with this `dilation`."""
        return kernel in (3, 5, 7)

    def winograd_weights(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the Winograd transform of `(O, C, K, K)` weights, and of mirrored ones for the gradient of the input.

        K is 3, 5 or 7. The transform is G g G^T (Lavin & Gray 2016, equation 8), in the memory layout that
        `winograd_convolve` reads.
        """
        c_out, c_in, kernel, _ = weight.shape
        weight = weight.detach().float().permute(0, 2, 3, 1).contiguous()
        products = (1 + 3 * (kernel // 2)) ** 2
        weights, mirrored = (
            torch.empty(products, -(columns // -BLOCK), -(rows // -2), BLOCK, 2, dtype=torch.bfloat16)
            for columns, rows in ((c_out, c_in), (c_in, c_out))
        )
        pointers = (weight.data_ptr(), weights.data_ptr(), mirrored.data_ptr())
        self._winograd_weights(*pointers, c_out, c_in, kernel, torch.get_num_threads())
        return weights, mirrored

    def winograd_convolve(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        c_out: int,
        kernel: int,
        dilation: int = 1,
        pad: int = 0,
    ) -> Tensor:
        """Return the convolution of `x`, `(N, c_out, H + 2 pad - reach, W + 2 pad - reach)`.

        x: `(N, C, H, W)`
        weight: a result of `winograd_weights`
        bias: `(c_out,)` float32
        c_out: number of output channels
        kernel: side of the kernel: 3, 5 or 7; `reach` is `(kernel - 1) * dilation`
        dilation: distance between the pixels that the kernel reads
        pad: number of zeros on each side of `x`, a multiple of `dilation`
        """
        (n, c, h, w), margin = x.shape, 2 * pad - (kernel - 1) * dilation
        result = empty_channels_last(n, c_out, h + margin, w + margin, dtype=torch.bfloat16)
        pointers = (x.data_ptr(), weight.data_ptr(), data_pointer(bias), result.data_ptr())
        self._winograd_convolve(*pointers, n, h, w, c, c_out, kernel, dilation, pad, torch.get_num_threads())
        return result

    def winograd_gradient(self, x: Tensor, g: Tensor, *, kernel: int, dilation: int = 1) -> Tensor:
        """Return the float32 gradient of the weights of `winograd_convolve` with `pad` 0, `(O, C, kernel, kernel)`.

        `x` is the input, `g` the gradient of the output, `(N, O, H - reach, W - reach)`.
        """
        n, c, h, w = x.shape
        result = empty_channels_last(g.shape[1], c, kernel, kernel, dtype=torch.float32)
        pointers = (x.data_ptr(), g.data_ptr(), result.data_ptr())
        self._winograd_gradient(*pointers, n, h, w, c, g.shape[1], kernel, dilation, torch.get_num_threads())
        return result

    def weight_gradient(self, x: Tensor, g: Tensor, *, kernel: int, stride: int, padding: int) -> Tensor:
        """Return the float32 gradient of `(O, C, kernel, kernel)` weights from input `x` and output gradient `g`."""
        (n, c, h, w), (_, c_out, rows, columns) = x.shape, g.shape
        result = empty_channels_last(c_out, c, kernel, kernel, dtype=torch.float32)
        pointers, sizes = (x.data_ptr(), g.data_ptr(), result.data_ptr()), (n, h, w, c, rows, columns, c_out)
        self._weight_gradient(*pointers, *sizes, kernel, stride, padding, torch.get_num_threads())
        return result

    def few_channel_convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, pad: int = 0) -> Tensor:
        """Return `F.conv2d(x, weight, bias, padding=pad)`: square kernel, 1 to 4 output channels, float32 `bias`."""
        (n, features, h, w), (c_out, _, kernel, _) = x.shape, weight.shape
        columns = -(kernel * kernel * c_out // -BLOCK) * BLOCK
        flat = weight.float().permute(1, 2, 3, 0).reshape(features, -1)
        blocks = F.pad(flat, (0, columns - flat.shape[1])).view(features // 2, 2, columns // BLOCK, BLOCK)
        blocks = blocks.permute(2, 0, 3, 1).contiguous().bfloat16()
        result = empty_channels_last(n, c_out, h + 2 * pad - kernel + 1, w + 2 * pad - kernel + 1, dtype=torch.bfloat16)
        pointers = (x.data_ptr(), blocks.data_ptr(), data_pointer(bias), result.data_ptr())
        self._few_channel_convolve(*pointers, n, h, w, features, c_out, kernel, pad, columns, torch.get_num_threads())
        return result

    def few_channel_gradient(self, features: Tensor, image: Tensor, *, kernel: int, pad: int) -> Tensor:
        """Return the gradient of the weights, `(kernel, kernel, C, F)` float32.

        At (i, j) it is the sum over all (y, x) of the features `(N, F, h, w)` at (y, x) times the image `(N, C, H, W)`
        at (y + i - pad, x + j - pad), which is 0 outside its bounds.
        """
        (n, c, h, w), (_, count, rows, columns) = image.shape, features.shape
        sums = torch.empty(kernel, kernel, c, count)
        pointers = (features.data_ptr(), image.data_ptr(), sums.data_ptr())
        self._few_channel_gradient(*pointers, n, rows, columns, count, h, w, c, kernel, pad, torch.get_num_threads())
        return sums
