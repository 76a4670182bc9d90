"""Metrics of an image compared with its ground truth."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_DATA_RANGE = 2.0  # images lie in [-1, 1]
_WINDOW = 11
_SIGMA = 1.5


def psnr(x: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute the peak signal-to-noise ratio of each image in dB, `10 log10(2² / MSE)`; inf for equal images.

    `x`, `y`: `(B, C, H, W)` in [-1, 1]. `mask`: `(B, 1, H, W)`, true (or a weight in [0, 1]) at pixels that count.
    Returns `(B,)` float64; NaN for an image whose mask is empty. Raises ValueError if shapes do not match.
    """
    _check(x, y, mask)
    error = _mean((x.double() - y.double()).square(), mask)
    return 10 * torch.log10(_DATA_RANGE**2 / error)


def ssim(x: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute the structural similarity of each image, at most 1; higher is better.

    Wang et al. 2004, equation 13: Gaussian window 11x11 with sigma 1.5, K1 = 0.01, K2 = 0.03, per channel.
    Only windows that lie fully inside the image count, so a border of 5 pixels is left out; with a mask,
    the mean is over the windows whose centre lies in the mask.

    `x`, `y`: `(B, C, H, W)` in [-1, 1], sides of at least 11; `mask`: `(B, 1, H, W)`, see `psnr`.
    Returns `(B,)` float64; NaN for an image whose mask is empty. Raises ValueError if shapes do not match or images
    are too small.
    """
    _check(x, y, mask)
    brightness, contrasts = _ssim_parts(x, y)
    border = _WINDOW // 2
    inner = None if mask is None else mask[..., border:-border, border:-border]
    return _mean(brightness * contrasts, inner)


def structure(x: Tensor, y: Tensor) -> Tensor:
    """Compute the similarity in contrast and structure of each image, at most 1, independent of brightness and colours.

    The product of contrast and structure (Wang et al. 2004, equations 9 and 10 with C3 = C2 / 2) of the luminance, over
    the windows of `ssim`. `x`, `y`: `(B, C, H, W)` in [-1, 1], which may differ in C; sides of at least 11.
    Returns `(B,)` float64. Raises ValueError if shapes do not match or images are too small.
    """
    x, y = luminance(x), luminance(y)
    _check(x, y, None)
    return _mean(_ssim_parts(x, y)[1], None)


def luminance(images: Tensor) -> Tensor:
    """Return the luminance `(B, 1, H, W)` of `(B, C, H, W)`: Rec. 601 luma of three channels, else their mean."""
    if images.shape[1] != 3:
        return images.mean(dim=1, keepdim=True)
    weights = torch.tensor([0.299, 0.587, 0.114], dtype=images.dtype, device=images.device)
    return (images * weights[:, None, None]).sum(dim=1, keepdim=True)


def _ssim_parts(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return SSIM's terms per window: brightness (Wang et al. 2004, eq. 6), contrast times structure (eq. 9, 10)."""
    if min(x.shape[-2:]) < _WINDOW:
        raise ValueError(f"SSIM needs sides of at least {_WINDOW} pixels, got {tuple(x.shape[-2:])}: use larger images")
    x, y = x.double() + 1, y.double() + 1  # intensities start at 0 in the paper
    mean_x, mean_y = _blur(x), _blur(y)
    variance_x = _blur(x * x) - mean_x.square()
    variance_y = _blur(y * y) - mean_y.square()
    covariance = _blur(x * y) - mean_x * mean_y
    c1, c2 = (0.01 * _DATA_RANGE) ** 2, (0.03 * _DATA_RANGE) ** 2
    brightness = (2 * mean_x * mean_y + c1) / (mean_x.square() + mean_y.square() + c1)
    return brightness, (2 * covariance + c2) / (variance_x + variance_y + c2)


def _check(x: Tensor, y: Tensor, mask: Tensor | None) -> None:
    if x.ndim != 4 or x.shape != y.shape:
        raise ValueError(f"images must be (B, C, H, W) of one shape, got {tuple(x.shape)} and {tuple(y.shape)}")
    expected = (x.shape[0], 1, *x.shape[2:])
    if mask is not None and mask.shape != expected:
        raise ValueError(f"mask must be {expected} for images {tuple(x.shape)}, got {tuple(mask.shape)}")


def _mean(values: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return values.mean(dim=(1, 2, 3))
    weights = mask.to(values.dtype).expand_as(values)
    return (values * weights).sum(dim=(1, 2, 3)) / weights.sum(dim=(1, 2, 3))


def _blur(x: Tensor) -> Tensor:
    offsets = torch.arange(_WINDOW, dtype=x.dtype, device=x.device) - _WINDOW // 2
    weights = torch.exp(-offsets.square() / (2 * _SIGMA**2))
    weights = weights / weights.sum()
    channels = x.shape[1]
    kernel = weights.view(1, 1, 1, -1).expand(channels, 1, 1, -1)
    x = functional.conv2d(x, kernel, groups=channels)
    return functional.conv2d(x, kernel.transpose(2, 3), groups=channels)
