from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from velogan.metrics.pixel import luminance, psnr, ssim, structure


def _pair(seed: int, side: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(2, 3, side, side, generator=generator) * 2 - 1
    return x, (x + 0.3 * torch.randn(x.shape, generator=generator)).clamp(-1, 1)


def _windows(x: np.ndarray, y: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the weights and both contents of each 11x11 window of two planes `(H, W)`, row by row."""
    offsets = np.arange(11) - 5
    weights = np.exp(-(offsets[:, None] ** 2 + offsets[None] ** 2) / (2 * 1.5**2))
    for row in range(5, x.shape[0] - 5):
        for column in range(5, x.shape[1] - 5):
            a, b = (image[row - 5 : row + 6, column - 5 : column + 6] for image in (x, y))
            yield weights / weights.sum(), a, b


def _ssim_by_windows(x: np.ndarray, y: np.ndarray, mask: np.ndarray) -> float:
    """Compute SSIM as in Wang et al. 2004, window by window, of one `(C, H, W)` image in [0, 255]."""
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    values = []
    for planes in zip(x, y):
        for weights, a, b in _windows(*planes):
            mean_a, mean_b = (weights * a).sum(), (weights * b).sum()
            variance_a, variance_b = (weights * (a - mean_a) ** 2).sum(), (weights * (b - mean_b) ** 2).sum()
            covariance = (weights * (a - mean_a) * (b - mean_b)).sum()
            top = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
            values.append(top / ((mean_a**2 + mean_b**2 + c1) * (variance_a + variance_b + c2)))
    inner = mask[5:-5, 5:-5].ravel()
    return float(np.mean(np.reshape(values, (len(x), -1))[:, inner]))


def _structure_by_windows(x: np.ndarray, y: np.ndarray) -> float:
    """Compute Wang et al. 2004, equations 9 and 10 with C3 = C2 / 2, window by window, of one plane in [0, 255]."""
    c2 = (0.03 * 255) ** 2
    c3, values = c2 / 2, []
    for weights, a, b in _windows(x, y):
        centred_a, centred_b = a - (weights * a).sum(), b - (weights * b).sum()
        deviation_a, deviation_b = ((weights * c**2).sum() ** 0.5 for c in (centred_a, centred_b))
        contrast = (2 * deviation_a * deviation_b + c2) / (deviation_a**2 + deviation_b**2 + c2)
        values.append(contrast * ((weights * centred_a * centred_b).sum() + c3) / (deviation_a * deviation_b + c3))
    return float(np.mean(values))


def test_psnr_of_a_known_error() -> None:
    x = torch.zeros(2, 3, 4, 4)
    assert psnr(x, x + 0.2).tolist() == pytest.approx([20.0, 20.0], abs=1e-4)  # 10 log10(4 / 0.04)
    assert psnr(x, x).tolist() == [math.inf, math.inf]


def test_psnr_counts_only_the_mask() -> None:
    x = torch.zeros(1, 3, 4, 4)
    y = x.clone()
    y[..., :2] = 0.2
    y[..., 2:] = 1.0
    mask = torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    mask[..., :2] = True
    assert psnr(x, y, mask).item() == pytest.approx(20.0, abs=1e-4)
    assert psnr(x, y, ~mask).item() == pytest.approx(10 * math.log10(4), abs=1e-4)
    assert psnr(x, y, torch.zeros_like(mask)).isnan().all()


@pytest.mark.parametrize("masked", [False, True])
def test_ssim_equals_the_paper_s_formula(masked: bool) -> None:
    x, y = _pair(3)
    mask = torch.ones(2, 1, 16, 16, dtype=torch.bool)
    if masked:
        mask[..., :7] = False
        mask[..., 9:, :] = False
    values = ssim(x, y, mask if masked else None)
    a, b = ((image.double().numpy() + 1) * 127.5 for image in (x, y))
    for i in range(2):
        expected = _ssim_by_windows(a[i], b[i], mask[i, 0].numpy())
        assert values[i].item() == pytest.approx(expected, abs=1e-10)


def test_ssim_is_1_only_for_equal_images_and_psnr_is_symmetric() -> None:
    x, y = _pair(5, side=32)
    assert ssim(x, x).tolist() == pytest.approx([1.0, 1.0], abs=1e-12)
    assert (ssim(x, y) < 0.99).all()
    assert torch.equal(psnr(x, y), psnr(y, x))


def test_structure_equals_the_paper_s_formula() -> None:
    x, y = (luminance(image) for image in _pair(3))
    values = structure(x, y)
    a, b = ((image.double().numpy()[0] + 1) * 127.5 for image in (x, y))
    assert values[0].item() == pytest.approx(_structure_by_windows(a[0], b[0]), abs=1e-10)


def test_structure_depends_on_the_layout_and_not_on_colours() -> None:
    x, y = _pair(5, side=32)
    brighter = (x * 0.5 + 0.4)[:, [1, 1, 1]]
    assert structure(x, x).tolist() == pytest.approx([1.0, 1.0], abs=1e-12)
    assert structure(0.5 * x, 0.5 * x + 0.4).tolist() == pytest.approx([1.0, 1.0], abs=1e-6)
    assert (structure(brighter, x) > structure(x, x.flip(3)) + 0.1).all()
    assert structure(x[:, :1], y).shape == (2,)  # grey against colours
    with pytest.raises(ValueError, match="at least 11"):
        structure(x[..., :8], x[..., :8])


def test_luminance_equals_pillow_s() -> None:
    levels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    grey = np.asarray(Image.fromarray(levels).convert("L"), np.float32)
    images = torch.from_numpy(levels).permute(2, 0, 1)[None].float()
    assert np.abs(luminance(images)[0, 0].numpy() - grey).max() <= 0.51
    assert torch.equal(luminance(images[:, :2]), images[:, :2].mean(dim=1, keepdim=True))


def test_rejects_wrong_shapes() -> None:
    x = torch.zeros(1, 3, 8, 8)
    with pytest.raises(ValueError, match="at least 11"):
        ssim(x, x)
    with pytest.raises(ValueError, match="one shape"):
        psnr(x, x[..., :4])
    with pytest.raises(ValueError, match="mask must be"):
        psnr(x, x, torch.ones(1, 3, 8, 8))
