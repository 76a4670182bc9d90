"""Norm or none, activation, residual add and reflection padding as Triton kernels for GPUs.

The same order of work as `norms.cpp`: one pass over the picture for its statistics and one for the result, and as many
backward. Each sum runs over fixed chunks of pixels whose partial sums are added in a fixed order, without atomics, so
results repeat bit for bit. Sums are float32.

Triton's interpreter (`TRITON_INTERPRET=1`) runs the same code on CPU tensors, which is how the tests run it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from velogan.kernels.norms import NormKernels, empty

_CHANNELS = 64
"""The most channels of one program, which lie side by side in memory."""

_VALUES = 1024
"""Values that a program looks at together: 8 for each thread of four warps, 16 bytes of bfloat16."""

_CHUNKS = 256
"""The most chunks that the pixels of a picture are divided into: about twice as many as a large GPU has processors."""

_COMBINED = 8
"""Channels whose chunks one program combines."""


class TritonNorms(NormKernels):
    """Computed by Triton, on the device of the tensors; float32, bfloat16 or float16."""

    on_gpu = True

    def plain_forward(self, x: Tensor, residual: Tensor | None, *, slope: float, pad: int) -> Tensor:
        return _written(x, residual, None, slope=slope, pad=pad)

    def plain_backward(self, g: Tensor, inner: Tensor | None, out: Tensor | None, *, slope: float, pad: int) -> Tensor:
        n, c, h, w = (*g.shape[:2], *(side - 2 * pad for side in g.shape[2:]))
        dx = empty(n, c, h, w, dtype=g.dtype, device=g.device)
        grid, block = _tiles(n, h * w, c)
        options = {"pad": pad, "has_inner": inner is not None, "has_out": out is not None, **block}
        _plain_gradient[grid](g, _or(inner, g), _or(out, g), dx, h, w, c, slope, **options)
        return dx

    def forward(
        self, x: Tensor, residual: Tensor | None, *, slope: float, pad: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        n, c, h, w = x.shape
        chunks = _Chunks(n, h * w, c)
        one, two = chunks.sums(x.device)
        mean, rstd = (torch.empty(n, c, dtype=torch.float32, device=x.device) for _ in range(2))
        _sums[chunks.grid](x, one, two, h * w, c, chunks.count, **chunks.block)
        _moments[chunks.combined](one, two, mean, rstd, h * w, c, chunks.pixels, chunks.count, eps, **chunks.all)
        return _written(x, residual, (mean, rstd), slope=slope, pad=pad), mean, rstd

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
        dx = empty(n, c, h, w, dtype=x.dtype, device=x.device)
        dresidual = empty(n, c, h, w, dtype=x.dtype, device=x.device) if residual else None
        chunks = _Chunks(n, h * w, c)
        one, two = chunks.sums(x.device)
        means = [torch.empty(n, c, dtype=torch.float32, device=x.device) for _ in range(2)]
        options = {"pad": pad, "has_inner": inner is not None, "residual": residual}
        given = g, _or(inner, g), x, mean, rstd
        _gradient_sums[chunks.grid](
            *given, _or(dresidual, x), one, two, h, w, c, chunks.count, slope, **options, **chunks.block
        )
        _means[chunks.combined](one, two, *means, h * w, c, chunks.count, **chunks.all)
        grid, block = _tiles(n, h * w, c)
        _gradient[grid](*given, *means, dx, h, w, c, slope, **options, **block)
        return dx, dresidual


def _written(
    x: Tensor, residual: Tensor | None, statistics: tuple[Tensor, Tensor] | None, *, slope: float, pad: int
) -> Tensor:
    """The padded result; `statistics` are mean and reciprocal deviation `(N, C)`, None: no norm."""
    n, c, h, w = x.shape
    out = empty(n, c, h + 2 * pad, w + 2 * pad, dtype=x.dtype, device=x.device)
    image, row = (0, 0) if residual is None else residual.stride()[::2]
    grid, block = _tiles(n, (h + 2 * pad) * (w + 2 * pad), c)
    options = {"pad": pad, "norm": statistics is not None, "residual": residual is not None, **block}
    _result[grid](x, _or(residual, x), image, row, *(statistics or (x, x)), out, h, w, c, slope, **options)
    return out


class _Chunks:
    """How the pixels of `n` pictures with `c` channels are divided for sums."""

    def __init__(self, n: int, pixels: int, c: int):
        block = _block(c)
        steps = triton.cdiv(triton.cdiv(pixels, _CHUNKS), block["pixels"])
        self.block = block | {"steps": steps}
        self.pixels = steps * block["pixels"]
        self.count = triton.cdiv(pixels, self.pixels)
        self.grid = self.count, triton.cdiv(c, block["channels"]), n
        self.combined = n, triton.cdiv(c, _COMBINED)
        self.all = {"chunks_block": triton.next_power_of_2(self.count), "channels": _COMBINED}
        self._shape = n, self.count, c

    def sums(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Places for two sums of every chunk and channel."""
        one, two = (torch.empty(self._shape, dtype=torch.float32, device=device) for _ in range(2))
        return one, two


def _block(c: int) -> dict[str, int]:
    channels = min(_CHANNELS, triton.next_power_of_2(c))
    return {"pixels": _VALUES // channels, "channels": channels}


def _tiles(n: int, pixels: int, c: int) -> tuple[tuple[int, int, int], dict[str, int]]:
    """The programs for `n` pictures, each of a block of pixels and channels, and that block."""
    block = _block(c)
    if pixels * c >= 2**31:
        raise ValueError(
            f"engine.kernels=native is for less than 2**31 values a picture, not {pixels} x {c}: set plain"
        )
    return (triton.cdiv(pixels, block["pixels"]), triton.cdiv(c, block["channels"]), n), block


def _or(x: Tensor | None, other: Tensor) -> Tensor:
    """A kernel takes no None: what is not there is never read."""
    return other if x is None else x


class _Launched(Protocol):
    """A kernel; `kernel[programs](...)` launches it."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]: ...


def _jit(kernel: Callable[..., None]) -> _Launched:
    """Compiled once for all sizes of pictures."""
    sizes = ["h", "w", "pixels_all", "chunk", "chunks", "residual_image", "residual_row"]
    return triton.jit(kernel, do_not_specialize=sizes)  # pyright: ignore[reportCallIssue]


@_jit
def _sums(x, one, two, pixels_all, c, chunks, steps: tl.constexpr, pixels: tl.constexpr, channels: tl.constexpr):
    """The mean of each chunk of an image, and the sum of squared differences to it, by channel."""
    k, n = tl.program_id(0), tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * channels + tl.arange(0, channels)
    known = channel < c
    base = x + n * pixels_all * c
    first = k * steps * pixels
    pivot = tl.load(base + first * c + channel, mask=known, other=0.0).to(tl.float32)
    total = tl.zeros([pixels, channels], tl.float32)
    squares = tl.zeros([pixels, channels], tl.float32)
    for step in range(steps):
        pixel = first + step * pixels + tl.arange(0, pixels)
        mask = (pixel < pixels_all)[:, None] & known[None, :]
        value = tl.load(base + pixel[:, None] * c + channel[None, :], mask=mask, other=0.0).to(tl.float32)
        value = tl.where(mask, value - pivot[None, :], 0.0)
        total += value
        squares += value * value
    count = tl.minimum(steps * pixels, pixels_all - first).to(tl.float32)
    summed = tl.sum(total, 0)
    to = n * chunks * c + k * c + channel
    tl.store(one + to, pivot + summed / count, mask=known)
    tl.store(two + to, tl.maximum(tl.sum(squares, 0) - summed * summed / count, 0.0), mask=known)


@_jit
def _moments(
    one, two, mean, rstd, pixels_all, c, chunk, chunks, eps, chunks_block: tl.constexpr, channels: tl.constexpr
):
    """Mean and reciprocal deviation of an image's channels from its chunks (Chan et al. 1979, eq. 2.1)."""
    n = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * channels + tl.arange(0, channels)
    known = channel < c
    k = tl.arange(0, chunks_block)
    mask = (k < chunks)[:, None] & known[None, :]
    at = n * chunks * c + k[:, None] * c + channel[None, :]
    count = tl.where(k < chunks, tl.minimum(chunk, pixels_all - k * chunk), 0).to(tl.float32)
    means = tl.load(one + at, mask=mask, other=0.0)
    average = tl.sum(means * count[:, None], 0) / pixels_all
    apart = tl.where(mask, means - average[None, :], 0.0)
    spread = tl.sum(tl.load(two + at, mask=mask, other=0.0) + apart * apart * count[:, None], 0)
    tl.store(mean + n * c + channel, average, mask=known)
    tl.store(rstd + n * c + channel, 1.0 / tl.sqrt_rn(spread / pixels_all + eps), mask=known)


@triton.jit
def _reflected(i, size):
    """The row or column of the picture that padding shows at `i`."""
    i = tl.where(i < 0, -i, i)
    return tl.where(i >= size, 2 * (size - 1) - i, i)


@_jit
def _result(
    x, residual_x, residual_image, residual_row, mean, rstd, out, h, w, c, slope,
    pad: tl.constexpr, norm: tl.constexpr, residual: tl.constexpr, pixels: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """The padded result: normalised, then activated or added to the residual."""
    n = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * channels + tl.arange(0, channels)
    wide, all_pixels = w + 2 * pad, (h + 2 * pad) * (w + 2 * pad)
    pixel = tl.program_id(0) * pixels + tl.arange(0, pixels)
    known = channel < c
    mask = (pixel < all_pixels)[:, None] & known[None, :]
    row = _reflected(pixel // wide - pad, h)
    column = _reflected(pixel % wide - pad, w)
    source = (row * w + column)[:, None] * c + channel[None, :]
    value = tl.load(x + n * h * w * c + source, mask=mask, other=0.0).to(tl.float32)
    if norm:
        average = tl.load(mean + n * c + channel, mask=known, other=0.0)
        value = (value - average[None, :]) * tl.load(rstd + n * c + channel, mask=known, other=0.0)[None, :]
    if residual:
        at = (row * residual_row + column * c)[:, None] + channel[None, :]
        value += tl.load(residual_x + n * residual_image + at, mask=mask, other=0.0).to(tl.float32)
    else:
        value = tl.where(value > 0, value, value * slope)
    to = out + n * all_pixels * c + pixel[:, None] * c + channel[None, :]
    tl.store(to, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _line(i, size, k: tl.constexpr, pad: tl.constexpr):
    """The k-th place (0 to 2) at which padding shows row or column `i`, and whether there is one."""
    if k == 0:
        place = i + pad
        shown = i >= 0
    elif k == 1:
        place = pad - i
        shown = (i >= 1) & (i <= pad)
    else:
        place = pad + 2 * (size - 1) - i
        shown = (i >= size - 1 - pad) & (i <= size - 2)
    return place, shown


@triton.jit
def _folded(g, inner, n, pixel, channel, mask, h, w, c, pad: tl.constexpr, has_inner: tl.constexpr):
    """The gradient of pixels: the sum over all places that show them, and that of the result without padding."""
    row, column = pixel // w, pixel % w
    wide, tall = w + 2 * pad, h + 2 * pad
    total = tl.zeros(mask.shape, tl.float32)
    base = g + n * tall * wide * c
    for i in tl.static_range(0, 3 if pad > 0 else 1):  # pyright: ignore[reportGeneralTypeIssues]
        for j in tl.static_range(0, 3 if pad > 0 else 1):  # pyright: ignore[reportGeneralTypeIssues]
            y, y_shown = _line(row, h, i, pad)
            z, z_shown = _line(column, w, j, pad)
            there = mask & (y_shown & z_shown)[:, None]
            at = (y * wide + z)[:, None] * c + channel[None, :]
            total += tl.load(base + at, mask=there, other=0.0).to(tl.float32)
    if has_inner:
        at = pixel[:, None] * c + channel[None, :]
        total += tl.load(inner + n * h * w * c + at, mask=mask, other=0.0).to(tl.float32)
    return total


@_jit
def _plain_gradient(
    g, inner, out, dx, h, w, c, slope,
    pad: tl.constexpr, has_inner: tl.constexpr, has_out: tl.constexpr, pixels: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """The gradient of x without a norm; the sign of the result says where the activation's slope holds."""
    n = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * channels + tl.arange(0, channels)
    pixel = tl.program_id(0) * pixels + tl.arange(0, pixels)
    mask = (pixel < h * w)[:, None] & (channel < c)[None, :]
    value = _folded(g, inner, n, pixel, channel, mask, h, w, c, pad, has_inner)
    if has_out:
        wide = w + 2 * pad
        at = ((pixel // w + pad) * wide + pixel % w + pad)[:, None] * c + channel[None, :]
        result = tl.load(out + n * (h + 2 * pad) * wide * c + at, mask=mask, other=0.0).to(tl.float32)
        value = tl.where(result > 0, value, value * slope)
    to = dx + n * h * w * c + pixel[:, None] * c + channel[None, :]
    tl.store(to, value.to(dx.dtype.element_ty), mask=mask)


@triton.jit
def _normalised(x, mean, rstd, n, pixel, channel, mask, pixels_all, c):
    """The normalised pixels, and the reciprocal deviation `(1, channels)`."""
    known = channel < c
    average = tl.load(mean + n * c + channel, mask=known, other=0.0)
    scale = tl.load(rstd + n * c + channel, mask=known, other=0.0)[None, :]
    at = pixel[:, None] * c + channel[None, :]
    value = tl.load(x + n * pixels_all * c + at, mask=mask, other=0.0).to(tl.float32)
    return (value - average[None, :]) * scale, scale


@_jit
def _gradient_sums(
    g, inner, x, mean, rstd, dresidual, one, two, h, w, c, chunks, slope, pad: tl.constexpr, has_inner: tl.constexpr,
    residual: tl.constexpr, steps: tl.constexpr, pixels: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """By chunk and channel: the sum of the gradient of the normalised pixels, and of its product with them."""
    k, n = tl.program_id(0), tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * channels + tl.arange(0, channels)
    known = channel < c
    total = tl.zeros([pixels, channels], tl.float32)
    products = tl.zeros([pixels, channels], tl.float32)
    for step in range(steps):
        pixel = (k * steps + step) * pixels + tl.arange(0, pixels)
        mask = (pixel < h * w)[:, None] & known[None, :]
        value = _folded(g, inner, n, pixel, channel, mask, h, w, c, pad, has_inner)
        normalised, _ = _normalised(x, mean, rstd, n, pixel, channel, mask, h * w, c)
        if residual:
            to = dresidual + n * h * w * c + pixel[:, None] * c + channel[None, :]
            tl.store(to, value.to(dresidual.dtype.element_ty), mask=mask)
        else:
            value = tl.where(normalised > 0, value, value * slope)
        total += value
        products += tl.where(mask, value * normalised, 0.0)
    to = n * chunks * c + k * c + channel
    tl.store(one + to, tl.sum(total, 0), mask=known)
    tl.store(two + to, tl.sum(products, 0), mask=known)


@_jit
def _means(one, two, first, second, pixels_all, c, chunks, chunks_block: tl.constexpr, channels: tl.constexpr):
    """The sums over all chunks, divided by the number of pixels."""
    n = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * channels + tl.arange(0, channels)
    k = tl.arange(0, chunks_block)
    known = channel < c
    mask = (k < chunks)[:, None] & known[None, :]
    at = n * chunks * c + k[:, None] * c + channel[None, :]
    tl.store(first + n * c + channel, tl.sum(tl.load(one + at, mask=mask, other=0.0), 0) / pixels_all, mask=known)
    tl.store(second + n * c + channel, tl.sum(tl.load(two + at, mask=mask, other=0.0), 0) / pixels_all, mask=known)


@_jit
def _gradient(
    g, inner, x, mean, rstd, first, second, dx, h, w, c, slope,
    pad: tl.constexpr, has_inner: tl.constexpr, residual: tl.constexpr, pixels: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """The gradient of x through the norm: r (g - mean(g) - y mean(g y)), with y the normalised pixels."""
    n = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * channels + tl.arange(0, channels)
    pixel = tl.program_id(0) * pixels + tl.arange(0, pixels)
    known = channel < c
    mask = (pixel < h * w)[:, None] & known[None, :]
    normalised, scale = _normalised(x, mean, rstd, n, pixel, channel, mask, h * w, c)
    value = _folded(g, inner, n, pixel, channel, mask, h, w, c, pad, has_inner)
    if not residual:
        value = tl.where(normalised > 0, value, value * slope)
    average = tl.load(first + n * c + channel, mask=known, other=0.0)[None, :]
    product = tl.load(second + n * c + channel, mask=known, other=0.0)[None, :]
    value = scale * (value - average - normalised * product)
    to = dx + n * h * w * c + pixel[:, None] * c + channel[None, :]
    tl.store(to, value.to(dx.dtype.element_ty), mask=mask)
