"""What judges see of pictures."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from velogan.data.config import DataConfig
from velogan.data.pictures.geography import Geography
from velogan.data.pictures.images import Picture, save_picture
from velogan.data.pictures.metadata import FileMetadata
from velogan.data.pictures.values import PixelFormat
from velogan.data.sets.sources import DomainSource, Folder
from velogan.evaluation.images import GroundTruth, ImageSet, open_ground_truth
from velogan.evaluation.per_image import label_confusions
from velogan.evaluation.scoring import Scorer
from velogan.metrics.registry import label_metrics


class Judge:
    def __init__(self) -> None:
        self.inputs: list[Tensor] = []

    def extract(self, images: Tensor) -> dict[str, Tensor]:
        self.inputs.append(images)
        return {"judge": images.flatten(1)}


def test_extracts_features_of_centre_slices() -> None:
    slices = np.stack([np.full((8, 8), level, np.float32) for level in (0, 500, 1000)], axis=-1)
    judge: Any = Judge()
    scorer = Scorer(DataConfig(), [judge], {}, None, 0, lambda _: lambda done, total: None)
    form = PixelFormat(3, "float32", (0, 1000), own_scale=True, neighbours=1)
    scorer.extract_features(ImageSet([slices], form), "looking")
    scorer.extract_features(ImageSet([slices], PixelFormat(3, "float32", (0, 1000))), "looking")
    middle, complete = judge.inputs
    assert torch.equal(middle, torch.zeros(1, 1, 8, 8))
    assert complete.shape == (1, 3, 8, 8)


def test_fills_missing_data_of_photographs_but_not_of_label_maps(tmp_path: Path):
    noise = np.random.default_rng(0).integers(100, 200, (48, 48, 1), np.uint8)
    classes = np.repeat(np.array([0, 90, 180, 255], np.uint8), 12)[:, None, None].repeat(48, axis=1)
    for name, pixels in (("maps", classes), ("photographs", np.where(classes == 255, classes, noise))):
        folder = tmp_path / name
        folder.mkdir()
        save_picture(folder / "0.tif", Picture(pixels, metadata=FileMetadata(geography=Geography(nodata=255))))
        data = DataConfig(crop_size=48, load_size=48, cache_dir=str(tmp_path / "cache"))
        side = DomainSource("A", "a", Folder(folder, ("0.tif",)), Folder(folder, ("0.tif",)), truth=folder)
        truth = open_ground_truth(side, side, ["0.tif"], data, task=lambda _: lambda done, total: None)
        brightest = truth.truths[0].max().item()
        assert (truth.labels is not None, brightest == 1) == ((name == "maps"),) * 2


@pytest.mark.parametrize("sides", [(8, 12), (12, 12)])
def test_ignores_label_maps_of_another_size(sides: tuple[int, int]) -> None:
    labels = torch.tensor([[-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]])
    truths = {number: torch.ones(1, 3, side, side) for number, side in enumerate(sides)}
    source: Any = SimpleNamespace(ground_truth=GroundTruth(truths, {}, labels))
    fakes = ImageSet([np.full((8, 8, 3), 255, np.uint8)] * 2, PixelFormat())
    matrices = label_confusions(source, fakes, labels)
    assert matrices.shape == (sides.count(8), 2, 2)
    metrics = label_metrics(matrices, seed=0)
    assert {metric.images for metric in metrics.values()} == ({1} if 8 in sides else set())
