"""What judges see of pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from velogan.data.config import DataConfig
from velogan.data.pictures.values import PixelFormat
from velogan.evaluation.pictures import Pictures
from velogan.evaluation.scoring import Scorer


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
