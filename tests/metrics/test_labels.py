from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from velogan.metrics.labels import (
    accuracy,
    confusion,
    find_label_colours,
    intersection_over_union,
    mean_iou,
    nearest_labels,
)

COLOURS = np.array([[0, 0, 222], [0, 128, 255], [255, 80, 0], [192, 255, 63]], np.uint8)


def _floats(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(pixels)).permute(2, 0, 1) / 127.5 - 1


def _map(seed: int, *, side: int = 64, jpeg: bool = True) -> Tensor:
    """Rectangles of a few colours, saved as JPEG."""
    generator = np.random.default_rng(seed)
    labels = np.zeros((side, side), int)
    for _ in range(12):
        top, left, height, width = generator.integers(0, side - 8, 4)
        labels[top : top + height // 2 + 8, left : left + width // 2 + 8] = generator.integers(len(COLOURS))
    picture = Image.fromarray(COLOURS[labels])
    if not jpeg:
        return _floats(np.asarray(picture))
    saved = io.BytesIO()
    picture.save(saved, "JPEG", quality=85)
    return _floats(np.asarray(Image.open(saved)))


def test_finds_the_colours_of_label_maps_saved_as_jpeg() -> None:
    labels = find_label_colours([_map(seed) for seed in range(4)])
    assert labels is not None
    colours = ((labels + 1) * 127.5).numpy()
    assert len(colours) == len(COLOURS)
    for colour in COLOURS.astype(float):
        assert np.abs(colours - colour).max(axis=1).min() <= 4


def _ramp(channels: int) -> Tensor:
    """Return smooth gradients, flat everywhere."""
    steps = torch.linspace(-1, 1, 64)
    return torch.stack([steps.roll(9 * c)[:, None] * 0.5 + steps * 0.5 for c in range(channels)])


@pytest.mark.parametrize("channels", [1, 3])
def test_smooth_gradients_are_not_label_maps(channels: int) -> None:
    assert find_label_colours([_ramp(channels)]) is None
    on_white = torch.ones(channels, 256, 64)
    on_white[:, :64] = _ramp(channels)
    assert find_label_colours([on_white]) is None  # a background is no class of its own
    assert find_label_colours([torch.zeros(channels, 16, 16)]) is None  # nor is one colour


def test_clipped_scans_are_not_label_maps() -> None:
    """Air is black and bone is white, exactly; what lies between is a texture of few levels."""
    scan = torch.full((1, 128, 128), -1.0)
    scan[:, 20:110, 20:110] = 1
    noise = torch.rand(1, 60, 60, generator=torch.Generator().manual_seed(0))
    scan[:, 35:95, 35:95] = -0.3 + 0.12 * (noise - 0.5)
    assert find_label_colours([scan, scan.flip(2)]) is None
    scan[:, 35:95, 35:95] = -0.3
    labels = find_label_colours([scan])
    assert labels is not None
    assert len(labels) == 3


def test_counts_pixels_by_class() -> None:
    labels = torch.tensor([[-1.0], [0.0], [1.0]])
    truth = torch.tensor([[[[-1.0, -1.0, 0.0, 0.0, -0.5]]]])  # the last lies between two colours: it does not count
    fake = torch.tensor([[[[-0.9, 0.1, 0.0, 0.2, 1.0]]]])
    confusions = confusion(fake, truth, labels)
    assert confusions.tolist() == [[[1, 1, 0], [0, 2, 0], [0, 0, 0]]]
    assert accuracy(confusions).item() == pytest.approx(3 / 4)
    assert intersection_over_union(confusions)[0, :2].tolist() == pytest.approx([1 / 2, 2 / 3])
    assert math.isnan(intersection_over_union(confusions)[0, 2].item())
    assert mean_iou(confusions).item() == pytest.approx((1 / 2 + 2 / 3) / 2)


def test_pixels_get_the_nearest_colour() -> None:
    labels = torch.tensor([[-1.0, -1.0], [1.0, 0.0]])
    images = torch.tensor([[[[-0.9, 0.9]], [[-1.0, 0.2]]]])
    nearest, distance = nearest_labels(images, labels)
    assert nearest.tolist() == [[[0, 1]]]
    assert distance.flatten().tolist() == pytest.approx([12.75, 25.5])


def test_a_class_of_the_fake_alone_lowers_others_and_does_not_count_itself() -> None:
    confusions = torch.tensor([[4.0, 0, 4], [0, 8, 0], [0, 0, 0]]).double()
    assert mean_iou(confusions).item() == pytest.approx((4 / 8 + 8 / 8) / 2)


@pytest.mark.shared
@pytest.mark.parametrize("side", [256, 128])
def test_facades_have_twelve_labels_and_their_photographs_none(shared_data: Path, side: int) -> None:
    def load(folder: str) -> list[Tensor]:
        pictures = []
        for file in sorted((shared_data / "facades" / folder).iterdir())[::4]:
            with Image.open(file) as picture:
                pictures.append(_floats(np.asarray(picture.convert("RGB").resize((side, side)))))
        return pictures

    maps = load("testB")
    labels = find_label_colours(maps)
    assert labels is not None
    assert len(labels) == 12  # Tylecek and Sara 2013: facade, molding, cornice, pillar, window, ...
    assert mean_iou(confusion(torch.stack(maps), torch.stack(maps), labels).sum(dim=0)).item() == 1
    assert find_label_colours(load("testA")) is None
