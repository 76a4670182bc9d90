"""Translations that depend on their inputs identify them, whatever their colours; others do so by chance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from velogan.data.pictures.images import read_picture
from velogan.metrics.retrieval import CHANCE, edge_descriptors, retrieval
from velogan.report.scores import MIN_RETRIEVAL


def mean_retrieval(fake: Tensor, inputs: Tensor) -> float:
    return retrieval(edge_descriptors(fake), edge_descriptors(inputs)).mean().item()


def blobs(count: int, seed: int) -> Tensor:
    """Draw smooth random images `(count, 3, 64, 64)`."""
    noise = torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(noise, size=64, mode="bicubic").clamp(-1, 1)


def test_the_identity_identifies_its_input_and_a_constant_none() -> None:
    images = blobs(30, 0)
    assert mean_retrieval(images, images) == 1
    assert mean_retrieval(torch.zeros_like(images), images) == CHANCE
    assert mean_retrieval(blobs(1, 1).expand_as(images), images) == pytest.approx(CHANCE, abs=1e-6)
    assert mean_retrieval(blobs(30, 2), images) == pytest.approx(CHANCE, abs=0.15)
    assert retrieval(edge_descriptors(images[:1]), edge_descriptors(images[:1])).isnan().all()


def test_reports_a_trace_of_the_input_as_chance() -> None:
    """The network of a collapsed training hides its input in one image, for the cycle: nobody sees it."""
    images = blobs(30, 0)
    assert mean_retrieval(0.99 * blobs(1, 1) + 0.01 * images, images) < 0.6


def _draw(images: Tensor) -> Tensor:
    """Return white drawings with a dark line at each edge."""
    grey = images.mean(1, keepdim=True)
    lines = (grey[:, :, 1:, :-1] - grey[:, :, :-1, :-1]).abs() + (grey[:, :, :-1, 1:] - grey[:, :, :-1, :-1]).abs()
    return (1 - 4 * lines).clamp(-1, 1).expand(-1, 3, -1, -1)


@pytest.mark.shared
@pytest.mark.parametrize(
    "change", [lambda images: -images, lambda images: (images.flip(1) * 0.5 + 0.3).clamp(-1, 1), _draw]
)
@pytest.mark.parametrize("folder", ["horse2zebra/testA", "apple2orange/testB", "maps/testA"])
def test_colours_and_drawings_identify_their_photographs(
    change: Callable[[Tensor], Tensor], folder: str, shared_data: Path
) -> None:
    images = read_images(shared_data / folder)
    assert mean_retrieval(change(images), images) > 0.98


@pytest.mark.shared
@pytest.mark.parametrize("name", ["maps", "facades", "cityscapes", "ct2mri"])
def test_true_translations_identify_their_inputs_and_those_of_others_do_not(name: str, shared_data: Path) -> None:
    for letter, other in ("AB", "BA"):
        images, truths = (read_images(shared_data / name / f"test{side}") for side in (letter, other))
        assert mean_retrieval(truths, images) > MIN_RETRIEVAL
        assert mean_retrieval(truths.roll(len(images) // 2, 0), images) < MIN_RETRIEVAL - 0.15


def read_images(folder: Path) -> Tensor:
    """Read 36 pictures of a folder at 128x128, `(36, 3 or 1, 128, 128)`."""
    files = sorted(folder.iterdir())
    pixels = [torch.from_numpy(read_picture(file).pixels) for file in files[:: len(files) // 36][:36]]
    images = [image.permute(2, 0, 1)[None] / 127.5 - 1 for image in pixels]
    return torch.cat([F.interpolate(image, size=(128, 128), mode="bilinear", antialias=True) for image in images])
