"""Each sign detects its failure, and none is raised by true translations of rendered images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from velogan.data.rendered.apples2oranges import render
from velogan.metrics.failures import failure_signs
from velogan.report.failures import FAILURE, find_failures

SIDE, COUNT = 64, 12


def found_failures(fake: Tensor, inputs: Tensor, target: Tensor) -> list[str]:
    """Return the failures that two equal measurements show."""
    row = {f"{FAILURE}{name}_a2b": value for name, value in failure_signs(fake, inputs, target).items()}
    return [failure.name for failure in find_failures([{"images": 10, **row}, {"images": 20, **row}])]


@pytest.fixture(scope="module")
def pictures() -> tuple[Tensor, Tensor, Tensor]:
    """Apples, the oranges that they should become, and other oranges."""
    apples = [render("test", "A", index, image_size=SIDE, seed=0) for index in range(COUNT)]
    others = [render("test", "B", index, image_size=SIDE, seed=0).image for index in range(COUNT)]
    as_tensor = [
        torch.from_numpy(np.stack(arrays)) for arrays in zip(*((apple.image, apple.truth) for apple in apples))
    ]
    a, b, c = (tensor.permute(0, 3, 1, 2) / 127.5 - 1 for tensor in (*as_tensor, torch.from_numpy(np.stack(others))))
    return a, b, c


def test_true_translations_have_no_failure(pictures: tuple[Tensor, Tensor, Tensor]) -> None:
    apples, oranges, others = pictures
    assert found_failures(oranges, apples, others) == []


def _checkered(images: Tensor) -> Tensor:
    position = torch.arange(SIDE)
    return (images + 0.1 * (-1.0) ** (position[:, None] + position)).clamp(-1, 1)


def _striped(images: Tensor) -> Tensor:
    return (images + 0.1 * (torch.arange(SIDE) % 4 == 0)).clamp(-1, 1)


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (lambda apples, oranges: -oranges, "correlation"),
        (lambda apples, oranges: oranges[:1].expand_as(oranges) * 1.0, "spread"),
        (lambda apples, oranges: oranges.roll(1, 0), "retrieval"),
        (lambda apples, oranges: apples + 0.004 * torch.randn_like(apples), "change"),
        (lambda apples, oranges: _checkered(oranges), "checkerboard"),
        (lambda apples, oranges: _striped(oranges), "checkerboard"),
    ],
)
def test_detects_failures(
    damage: Callable[[Tensor, Tensor], Tensor], name: str, pictures: tuple[Tensor, Tensor, Tensor]
) -> None:
    apples, oranges, others = pictures
    torch.manual_seed(0)
    assert f"{FAILURE}{name}_a2b" in found_failures(damage(apples, oranges), apples, others)
