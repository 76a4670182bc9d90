from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from velogan.metrics.resize import resize_for_features, to_rgb


def _picture(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("size", [(64, 48), (30, 29), (10, 17)])
def test_equals_pillow_s_bicubic_in_float32(size: tuple[int, int]) -> None:
    levels = _picture(*size)
    channels = [Image.fromarray(levels[:, :, c].astype(np.float32)) for c in range(3)]
    expected = [np.asarray(channel.resize((29, 29), Image.Resampling.BICUBIC)).clip(0, 255) for channel in channels]
    images = torch.from_numpy(levels).permute(2, 0, 1)[None] / 127.5 - 1
    resized = resize_for_features(images, 29)[0].numpy()
    np.testing.assert_allclose(resized, np.stack(expected), atol=1e-3)
    if size != (29, 29):
        assert np.abs(resized - resized.round()).max() > 0.1  # values between the levels stay


def test_resizing_uses_all_pixels() -> None:
    images = torch.full((1, 1, 64, 64), -1.0)
    images[..., ::8, :] = 1.0  # lines that a resize to an eighth finds in every row or misses
    assert resize_for_features(images, 8).mean().item() == pytest.approx(255 / 8, rel=0.1)


def test_grey_becomes_three_channels_and_others_are_rejected() -> None:
    assert to_rgb(torch.zeros(2, 1, 4, 4)).shape == (2, 3, 4, 4)
    with pytest.raises(ValueError, match="2 channels"):
        to_rgb(torch.zeros(1, 2, 4, 4))
