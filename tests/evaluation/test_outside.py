from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from benchmarks import outside as module
from benchmarks.outside import MIN_STRIPED_AREA, outside
from velogan.config import Config, to_yaml

from ..models import in_memory

SIDE = 64

BRIGHTER = 26 / 127.5  # whole levels of 8 bits


class _Bars(nn.Module):
    """Paints bars over the upper part of a picture; its lower half is brighter."""

    def __init__(self, rows: int, brighter: float):
        super().__init__()
        self.rows, self.brighter = rows, brighter

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out = images.clone()
        out[..., : self.rows, :] = (torch.arange(SIDE) // 2 % 2 * 2 - 1).float() * 0.8
        out[..., SIDE // 2 :, :] += self.brighter
        return out


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run on grey pictures: of A half have a mask, of their upper rows; the translator to B paints bars there."""
    data = tmp_path / "a2b"
    for letter in "AB":
        (data / f"train{letter}").mkdir(parents=True)
        for number in range(30):
            Image.fromarray(np.full((SIDE, SIDE, 3), 120, np.uint8)).save(data / f"train{letter}" / f"{number:02d}.jpg")
    (data / "maskA").mkdir()
    mask = np.zeros((SIDE, SIDE), np.uint8)
    mask[: SIDE // 4] = 255
    for number in range(0, 30, 2):
        Image.fromarray(mask).convert("1").save(data / "maskA" / f"{number:02d}.png")
    folder = tmp_path / "run"
    folder.mkdir()
    fields = {"path": [str(data)], "crop_size": SIDE, "load_size": SIDE, "validation": 3}
    (folder / "config.yaml").write_text(to_yaml(Config().change(data=fields)))
    _translate_by(monkeypatch, _Bars(SIDE // 4, BRIGHTER))
    return folder


def _translate_by(monkeypatch: pytest.MonkeyPatch, net: nn.Module) -> None:
    monkeypatch.setattr(module, "load_translator", lambda run, **_: in_memory(net))


def test_measures_changes_outside_masks(run: Path):
    result = outside(run)
    assert result.keys() == {"a2b"}  # B has no masks
    names = {path.stem for path in (run.parent / "a2b" / "maskA").iterdir()}
    assert 0 < result["a2b"]["images"] <= 3
    assert len(names) == 15
    # below the grown mask, of 18 of 64 rows, 32 of 46 are brighter
    assert result["a2b"]["psnr_outside_db"] == pytest.approx(10 * np.log10(4 / (BRIGHTER**2 * 32 / 46)), abs=1e-3)
    assert result["a2b"]["striped_outside"] == 0


def test_counts_stripes_outside_masks(run: Path, monkeypatch: pytest.MonkeyPatch):
    _translate_by(monkeypatch, _Bars(SIDE // 2, 0.0))
    assert outside(run)["a2b"]["striped_outside"] == 1
    assert MIN_STRIPED_AREA < 16 / 64
