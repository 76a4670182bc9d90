"""Compute optional norm, activation, residual add and reflection padding by Triton kernels on GPUs.

The passes are the same as in `norms.cpp`: forward and backward each take one for the statistics and one for the
result. Each sum runs over fixed chunks of pixels whose partial sums are added in a fixed order, without atomics, so
results repeat bit for bit. Sums are float32.

Triton's interpreter (`TRITON_INTERPRET=1`) runs the same code on CPU tensors, which is how the tests run it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from velogan.kernels.norms import NormKernels, Saved, empty_channels_last

_CHANNELS = 64
"""Maximum number of channels that a program processes; they are adjacent in memory."""

_VALUES = 1024
"""Number of values that a program processes together: 8 per thread of four warps, 16 bytes of bfloat16."""

_CHUNKS = 256
"""Maximum number of chunks of pixels in an image: about twice the number of multiprocessors of a large GPU."""

_COMBINED = 8
"""Number of channels whose chunks one program combines."""


class TritonNorms(NormKernels):
    """Triton kernels, for tensors in float32, bfloat16 or float16."""

    on_gpu = True

    def epilogue_forward(self, x: Tensor, residual: Tensor | None, *, slope: float, pad: int) -> Tensor:
        return _compute_result(x, residual, None, slope=slope, pad=pad)

    def epilogue_backward(
        self, g: Tensor, unpadded: Tensor | None, out: Tensor | None, *, slope: float, pad: int
    ) -> Tensor:
        n, c, h, w = (*g.shape[:2], *(side - 2 * pad for side in g.shape[2:]))
        dx = empty_channels_last(n, c, h, w, dtype=g.dtype, device=g.device)
        grid, block = _tiles(n, h * w, c)
        options = {"pad": pad, "has_unpadded": unpadded is not None, "has_out": out is not None, **block}
        _plain_gradient[grid](g, _or_unused(unpadded, g), _or_unused(out, g), dx, h, w, c, slope, **options)
        return dx

    def forward(
        self, x: Tensor, residual: Tensor | None, *, slope: float, pad: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        n, c, h, w = x.shape
        chunks = _Chunks(n, h * w, c)
        partial = chunks.empty_pair(x.device)
        mean, rstd = (torch.empty(n, c, dtype=torch.float32, device=x.device) for _ in range(2))
        _chunk_moments[chunks.grid](x, *partial, h * w, c, chunks.count, **chunks.block)
        _moments[chunks.combine_grid](
            *partial, mean, rstd, h * w, c, chunks.pixels, chunks.count, eps, **chunks.combine_block
        )
        return _compute_result(x, residual, (mean, rstd), slope=slope, pad=pad), mean, rstd

    def backward(
        self, g: Tensor, unpadded: Tensor | None, *, saved: Saved, slope: float, pad: int, has_residual: bool
    ) -> tuple[Tensor, Tensor | None]:
        x, mean, rstd = saved
        n, c, h, w = x.shape
        dx = empty_channels_last(n, c, h, w, dtype=x.dtype, device=x.device)
        dresidual = empty_channels_last(n, c, h, w, dtype=x.dtype, device=x.device) if has_residual else None
        chunks = _Chunks(n, h * w, c)
        sums = chunks.empty_pair(x.device)
        means = [torch.empty(n, c, dtype=torch.float32, device=x.device) for _ in range(2)]
        options = {"pad": pad, "has_unpadded": unpadded is not None, "has_residual": has_residual}
        inputs = g, _or_unused(unpadded, g), x, mean, rstd
        _gradient_sums[chunks.grid](
            *inputs, _or_unused(dresidual, x), *sums, h, w, c, chunks.count, slope, **options, **chunks.block
        )
        _gradient_means[chunks.combine_grid](*sums, *means, h * w, c, chunks.count, **chunks.combine_block)
        grid, block = _tiles(n, h * w, c)
        _gradient[grid](*inputs, *means, dx, h, w, c, slope, **options, **block)
        return dx, dresidual


def _compute_result(
    x: Tensor, residual: Tensor | None, statistics: tuple[Tensor, Tensor] | None, *, slope: float, pad: int
) -> Tensor:
    """Return the padded result; `statistics`: mean and reciprocal standard deviation `(N, C)`, None without a norm."""
    n, c, h, w = x.shape
    out = empty_channels_last(n, c, h + 2 * pad, w + 2 * pad, dtype=x.dtype, device=x.device)
    image, row = (0, 0) if residual is None else residual.stride()[::2]
    grid, block = _tiles(n, (h + 2 * pad) * (w + 2 * pad), c)
    options = {"pad": pad, "has_norm": statistics is not None, "has_residual": residual is not None, **block}
    _result[grid](x, _or_unused(residual, x), image, row, *(statistics or (x, x)), out, h, w, c, slope, **options)
    return out


class _Chunks:
    """The division of the pixels of `n` images with `c` channels into chunks, for sums."""

    def __init__(self, n: int, pixels: int, c: int):
        block = _block(c)
        steps = triton.cdiv(triton.cdiv(pixels, _CHUNKS), block["pixels"])
        self.block = block | {"steps": steps}
        self.pixels = steps * block["pixels"]
        self.count = triton.cdiv(pixels, self.pixels)
        self.grid = self.count, triton.cdiv(c, block["channels"]), n
        self.combine_grid = n, triton.cdiv(c, _COMBINED)
        self.combine_block = {"chunks_block": triton.next_power_of_2(self.count), "channels": _COMBINED}
        self._shape = n, self.count, c

    def empty_pair(self, device: torch.device) -> tuple[Tensor, ...]:
        """Return two uninitialised float32 tensors `(n, chunks, c)`."""
        return tuple(torch.empty(self._shape, dtype=torch.float32, device=device) for _ in range(2))


def _block(c: int) -> dict[str, int]:
    channels = min(_CHANNELS, triton.next_power_of_2(c))
    return {"pixels": _VALUES // channels, "channels": channels}


def _tiles(n: int, pixels: int, c: int) -> tuple[tuple[int, int, int], dict[str, int]]:
    """Return the grid of programs for `n` images, and the block of pixels and channels of each program."""
    block = _block(c)
    if pixels * c >= 2**31:
        raise ValueError(
            f"engine.kernels=native: an image has {pixels} x {c} values, at most 2**31 - 1 are supported; set plain"
        )
    return (triton.cdiv(pixels, block["pixels"]), triton.cdiv(c, block["channels"]), n), block


def _or_unused(x: Tensor | None, other: Tensor) -> Tensor:
    """Return `x`; if it is None, `other`, as a placeholder that the kernel never reads."""
    return other if x is None else x


def _jit(kernel: Callable[..., None]) -> Any:
    """Compile a kernel once for all sizes of images; `kernel[grid](...)` launches it."""
    sizes = ["h", "w", "pixels_all", "chunk", "chunks", "residual_image", "residual_row"]
    return triton.jit(kernel, do_not_specialize=sizes)  # pyright: ignore[reportCallIssue]


@_jit
def _chunk_moments(
    x, chunk_means, chunk_squares, pixels_all, c, chunks,
    steps: tl.constexpr, pixels: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """Store the mean of each chunk of an image, and the sum of squared differences from it, by channel."""
    k, n = tl.program_id(0), tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * channels + tl.arange(0, channels)
    channel_mask = channel < c
    base = x + n * pixels_all * c
    first_pixel = k * steps * pixels
    pivot = tl.load(base + first_pixel * c + channel, mask=channel_mask, other=0.0).to(tl.float32)
    total = tl.zeros([pixels, channels], tl.float32)
    squares = tl.zeros([pixels, channels], tl.float32)
    for step in range(steps):
        pixel = first_pixel + step * pixels + tl.arange(0, pixels)
        mask = (pixel < pixels_all)[:, None] & channel_mask[None, :]
        value = tl.load(base + pixel[:, None] * c + channel[None, :], mask=mask, other=0.0).to(tl.float32)
        value = tl.where(mask, value - pivot[None, :], 0.0)
        total += value
        squares += value * value
    count = tl.minimum(steps * pixels, pixels_all - first_pixel).to(tl.float32)
    block_sum = tl.sum(total, 0)
    target = n * chunks * c + k * c + channel
    tl.store(chunk_means + target, pivot + block_sum / count, mask=channel_mask)
    tl.store(
        chunk_squares + target, tl.maximum(tl.sum(squares, 0) - block_sum * block_sum / count, 0.0), mask=channel_mask
    )


@_jit
def _moments(
    chunk_means, chunk_squares, mean, rstd, pixels_all, c, chunk, chunks, eps,
    chunks_block: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """Combine chunks: store mean and reciprocal standard deviation of each channel (Chan et al. 1979, eq. 2.1)."""
    n = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * channels + tl.arange(0, channels)
    channel_mask = channel < c
    k = tl.arange(0, chunks_block)
    mask = (k < chunks)[:, None] & channel_mask[None, :]
    offset = n * chunks * c + k[:, None] * c + channel[None, :]
    count = tl.where(k < chunks, tl.minimum(chunk, pixels_all - k * chunk), 0).to(tl.float32)
    means = tl.load(chunk_means + offset, mask=mask, other=0.0)
    average = tl.sum(means * count[:, None], 0) / pixels_all
    difference = tl.where(mask, means - average[None, :], 0.0)
    spread = tl.sum(tl.load(chunk_squares + offset, mask=mask, other=0.0) + difference * difference * count[:, None], 0)
    tl.store(mean + n * c + channel, average, mask=channel_mask)
    tl.store(rstd + n * c + channel, 1.0 / tl.sqrt_rn(spread / pixels_all + eps), mask=channel_mask)


@triton.jit
def _reflected(i, size):
    """Return the row or column of the image at index `i`; in the padding, below 0 and from `size` on, reflect it."""
    i = tl.where(i < 0, -i, i)
    return tl.where(i >= size, 2 * (size - 1) - i, i)


@_jit
def _result(
    x, residual_x, residual_image, residual_row, mean, rstd, out, h, w, c, slope, pad: tl.constexpr,
    has_norm: tl.constexpr, has_residual: tl.constexpr, pixels: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """Store the padded result: normalised, then activated or added to the residual."""
    n = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * channels + tl.arange(0, channels)
    padded_w, padded_pixels = w + 2 * pad, (h + 2 * pad) * (w + 2 * pad)
    pixel = tl.program_id(0) * pixels + tl.arange(0, pixels)
    channel_mask = channel < c
    mask = (pixel < padded_pixels)[:, None] & channel_mask[None, :]
    row = _reflected(pixel // padded_w - pad, h)
    column = _reflected(pixel % padded_w - pad, w)
    source = (row * w + column)[:, None] * c + channel[None, :]
    value = tl.load(x + n * h * w * c + source, mask=mask, other=0.0).to(tl.float32)
    if has_norm:
        average = tl.load(mean + n * c + channel, mask=channel_mask, other=0.0)
        value = (value - average[None, :]) * tl.load(rstd + n * c + channel, mask=channel_mask, other=0.0)[None, :]
    if has_residual:
        offset = (row * residual_row + column * c)[:, None] + channel[None, :]
        value += tl.load(residual_x + n * residual_image + offset, mask=mask, other=0.0).to(tl.float32)
    else:
        value = tl.where(value > 0, value, value * slope)
    target = out + n * padded_pixels * c + pixel[:, None] * c + channel[None, :]
    tl.store(target, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _padded_position(i, size, k: tl.constexpr, pad: tl.constexpr):
    """Return the position of the k-th copy (0 to 2) of row or column `i` in the padded image, and whether it exists."""
    if k == 0:
        position = i + pad
        exists = i >= 0
    elif k == 1:
        position = pad - i
        exists = (i >= 1) & (i <= pad)
    else:
        position = pad + 2 * (size - 1) - i
        exists = (i >= size - 1 - pad) & (i <= size - 2)
    return position, exists


@triton.jit
def _folded_gradient(g, unpadded, n, pixel, channel, mask, h, w, c, pad: tl.constexpr, has_unpadded: tl.constexpr):
    """Return the gradient of input pixels: `g` summed over each pixel's padded copies, plus `unpadded`."""
    row, column = pixel // w, pixel % w
    padded_w, padded_h = w + 2 * pad, h + 2 * pad
    total = tl.zeros(mask.shape, tl.float32)
    base = g + n * padded_h * padded_w * c
    for i in tl.static_range(0, 3 if pad > 0 else 1):  # pyright: ignore[reportGeneralTypeIssues]
        for j in tl.static_range(0, 3 if pad > 0 else 1):  # pyright: ignore[reportGeneralTypeIssues]
            padded_row, row_exists = _padded_position(row, h, i, pad)
            padded_column, column_exists = _padded_position(column, w, j, pad)
            present = mask & (row_exists & column_exists)[:, None]
            offset = (padded_row * padded_w + padded_column)[:, None] * c + channel[None, :]
            total += tl.load(base + offset, mask=present, other=0.0).to(tl.float32)
    if has_unpadded:
        offset = pixel[:, None] * c + channel[None, :]
        total += tl.load(unpadded + n * h * w * c + offset, mask=mask, other=0.0).to(tl.float32)
    return total


@_jit
def _plain_gradient(
    g, unpadded, out, dx, h, w, c, slope,
    pad: tl.constexpr, has_unpadded: tl.constexpr, has_out: tl.constexpr, pixels: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """Store the gradient of x without a norm; the activation's slope applies where the result is not positive."""
    n = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * channels + tl.arange(0, channels)
    pixel = tl.program_id(0) * pixels + tl.arange(0, pixels)
    mask = (pixel < h * w)[:, None] & (channel < c)[None, :]
    value = _folded_gradient(g, unpadded, n, pixel, channel, mask, h, w, c, pad, has_unpadded)
    if has_out:
        padded_w = w + 2 * pad
        offset = ((pixel // w + pad) * padded_w + pixel % w + pad)[:, None] * c + channel[None, :]
        result = tl.load(out + n * (h + 2 * pad) * padded_w * c + offset, mask=mask, other=0.0).to(tl.float32)
        value = tl.where(result > 0, value, value * slope)
    target = dx + n * h * w * c + pixel[:, None] * c + channel[None, :]
    tl.store(target, value.to(dx.dtype.element_ty), mask=mask)


@triton.jit
def _normalised(x, mean, rstd, n, pixel, channel, mask, pixels_all, c):
    """Return the normalised pixels, and the reciprocal standard deviation `(1, channels)`."""
    channel_mask = channel < c
    average = tl.load(mean + n * c + channel, mask=channel_mask, other=0.0)
    scale = tl.load(rstd + n * c + channel, mask=channel_mask, other=0.0)[None, :]
    offset = pixel[:, None] * c + channel[None, :]
    value = tl.load(x + n * pixels_all * c + offset, mask=mask, other=0.0).to(tl.float32)
    return (value - average[None, :]) * scale, scale


@_jit
def _gradient_sums(
    g, unpadded, x, mean, rstd, dresidual, grad_sums, product_sums, h, w, c, chunks, slope,
    pad: tl.constexpr, has_unpadded: tl.constexpr, has_residual: tl.constexpr,
    steps: tl.constexpr, pixels: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """Store, by chunk and channel, the sums of the gradient of the normalised pixels and of its product with them."""
    k, n = tl.program_id(0), tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * channels + tl.arange(0, channels)
    channel_mask = channel < c
    total = tl.zeros([pixels, channels], tl.float32)
    products = tl.zeros([pixels, channels], tl.float32)
    for step in range(steps):
        pixel = (k * steps + step) * pixels + tl.arange(0, pixels)
        mask = (pixel < h * w)[:, None] & channel_mask[None, :]
        value = _folded_gradient(g, unpadded, n, pixel, channel, mask, h, w, c, pad, has_unpadded)
        normalised, _ = _normalised(x, mean, rstd, n, pixel, channel, mask, h * w, c)
        if has_residual:
            target = dresidual + n * h * w * c + pixel[:, None] * c + channel[None, :]
            tl.store(target, value.to(dresidual.dtype.element_ty), mask=mask)
        else:
            value = tl.where(normalised > 0, value, value * slope)
        total += value
        products += tl.where(mask, value * normalised, 0.0)
    target = n * chunks * c + k * c + channel
    tl.store(grad_sums + target, tl.sum(total, 0), mask=channel_mask)
    tl.store(product_sums + target, tl.sum(products, 0), mask=channel_mask)


@_jit
def _gradient_means(
    grad_sums, product_sums, grad_mean, product_mean, pixels_all, c, chunks,
    chunks_block: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """Store the sums over all chunks, divided by the number of pixels."""
    n = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * channels + tl.arange(0, channels)
    k = tl.arange(0, chunks_block)
    channel_mask = channel < c
    mask = (k < chunks)[:, None] & channel_mask[None, :]
    offset = n * chunks * c + k[:, None] * c + channel[None, :]
    target = n * c + channel
    tl.store(
        grad_mean + target, tl.sum(tl.load(grad_sums + offset, mask=mask, other=0.0), 0) / pixels_all, mask=channel_mask
    )
    products = tl.load(product_sums + offset, mask=mask, other=0.0)
    tl.store(product_mean + target, tl.sum(products, 0) / pixels_all, mask=channel_mask)


@_jit
def _gradient(
    g, unpadded, x, mean, rstd, grad_mean, product_mean, dx, h, w, c, slope, pad: tl.constexpr,
    has_unpadded: tl.constexpr, has_residual: tl.constexpr, pixels: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """Store the gradient of x through the norm: r (g - mean(g) - y mean(g y)); y: normalised pixels, r: rstd."""
    n = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * channels + tl.arange(0, channels)
    pixel = tl.program_id(0) * pixels + tl.arange(0, pixels)
    channel_mask = channel < c
    mask = (pixel < h * w)[:, None] & channel_mask[None, :]
    normalised, scale = _normalised(x, mean, rstd, n, pixel, channel, mask, h * w, c)
    value = _folded_gradient(g, unpadded, n, pixel, channel, mask, h, w, c, pad, has_unpadded)
    if not has_residual:
        value = tl.where(normalised > 0, value, value * slope)
    average = tl.load(grad_mean + n * c + channel, mask=channel_mask, other=0.0)[None, :]
    product = tl.load(product_mean + n * c + channel, mask=channel_mask, other=0.0)[None, :]
    value = scale * (value - average - normalised * product)
    target = dx + n * h * w * c + pixel[:, None] * c + channel[None, :]
    tl.store(target, value.to(dx.dtype.element_ty), mask=mask)
