"""What judges see of pictures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from velogan.data.config import DataConfig
from velogan.data.pictures.values import PixelFormat
from velogan.evaluation.each import confusions
from velogan.evaluation.pictures import Answers, Pictures
from velogan.evaluation.scoring import Scorer
from velogan.metrics.figures import label_figures


class Judge:
    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def look(self, images: Tensor) -> dict[str, Tensor]:
        self.seen.append(images)
        return {"judge": images.flatten(1)}


def test_of_slices_with_neighbours_the_middle_ones_are_judged_and_not_three_as_rgb() -> None:
    slices = np.stack([np.full((8, 8), level, np.float32) for level in (0, 500, 1000)], axis=-1)
    judge: Any = Judge()
    scorer = Scorer(DataConfig(), [judge], {}, None, 0, lambda _: lambda done, total: None)
    form = PixelFormat(3, "float32", (0, 1000), own_scale=True, neighbours=1)
    scorer.look(Pictures([slices], form), "looking")
    scorer.look(Pictures([slices], PixelFormat(3, "float32", (0, 1000))), "looking")
    middle, whole = judge.seen
    assert torch.equal(middle, torch.zeros(1, 1, 8, 8))
    assert whole.shape == (1, 3, 8, 8)


@pytest.mark.parametrize("sides", [(8, 12), (12, 12)])
def test_label_maps_of_another_size_than_the_translation_are_left_out(sides: tuple[int, int]) -> None:
    labels = torch.tensor([[-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]])
    truths = {number: torch.ones(1, 3, side, side) for number, side in enumerate(sides)}
    source: Any = SimpleNamespace(answers=Answers(truths, {}, labels))
    fakes = Pictures([np.full((8, 8, 3), 255, np.uint8)] * 2, PixelFormat())
    found = confusions(source, fakes, labels)
    assert found.shape == (sides.count(8), 2, 2)
    figures = label_figures(found, seed=0)
    assert {figure.images for figure in figures.values()} == ({1} if 8 in sides else set())
