"""Each sign shows its failure, and none shows on true translations of rendered pictures."""

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


def shown(fake: Tensor, given: Tensor, target: Tensor) -> list[str]:
    """The failures that two equal measurements make a log show."""
    row = {f"{FAILURE}{name}_a2b": value for name, value in failure_signs(fake, given, target).items()}
    return [one.name for one in find_failures([{"images": 10, **row}, {"images": 20, **row}])]


@pytest.fixture(scope="module")
def pictures() -> tuple[Tensor, Tensor, Tensor]:
    """Apples, the oranges that they should become, and other oranges."""
    apples = [render("test", "A", index, image_size=SIDE, seed=0) for index in range(COUNT)]
    others = [render("test", "B", index, image_size=SIDE, seed=0).image for index in range(COUNT)]
    as_tensor = [torch.from_numpy(np.stack(each)) for each in zip(*((one.image, one.truth) for one in apples))]
    a, b, c = (one.permute(0, 3, 1, 2) / 127.5 - 1 for one in (*as_tensor, torch.from_numpy(np.stack(others))))
    return a, b, c


def test_true_translations_show_nothing(pictures: tuple[Tensor, Tensor, Tensor]) -> None:
    apples, oranges, others = pictures
    assert shown(oranges, apples, others) == []


def test_one_picture_alone_says_nothing_of_a_spread(pictures: tuple[Tensor, Tensor, Tensor]) -> None:
    apples, oranges, others = (one[:1] for one in pictures)
    assert not {"spread", "retrieval"} & failure_signs(oranges, apples, others).keys()
    assert shown(oranges, apples, others) == []


def _checkered(images: Tensor) -> Tensor:
    place = torch.arange(SIDE)
    return (images + 0.1 * (-1.0) ** (place[:, None] + place)).clamp(-1, 1)


def _striped(images: Tensor) -> Tensor:
    return (images + 0.1 * (torch.arange(SIDE) % 4 == 0)).clamp(-1, 1)


@pytest.mark.parametrize(
    ("break_it", "name"),
    [
        (lambda apples, oranges: -oranges, "correlation"),
        (lambda apples, oranges: oranges[:1].expand_as(oranges) * 1.0, "spread"),
        (lambda apples, oranges: oranges.roll(1, 0), "retrieval"),
        (lambda apples, oranges: apples + 0.004 * torch.randn_like(apples), "change"),
        (lambda apples, oranges: _checkered(oranges), "checkerboard"),
        (lambda apples, oranges: _striped(oranges), "checkerboard"),
    ],
)
def test_a_failure_shows_its_sign(
    break_it: Callable[[Tensor, Tensor], Tensor], name: str, pictures: tuple[Tensor, Tensor, Tensor]
) -> None:
    apples, oranges, others = pictures
    torch.manual_seed(0)
    assert f"{FAILURE}{name}_a2b" in shown(break_it(apples, oranges), apples, others)
