"""What masks say must be kept: a loss on what changes outside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from velogan.config import Config
from velogan.data.pictures.images import Picture, save_picture
from velogan.objectives.masks import changed_outside
from velogan.observe.progress import Display
from velogan.training.run import train


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Four pictures in A and B; the masks of A say where a picture is bright."""
    for index in range(4):
        for letter in "AB":
            pixels = np.random.default_rng([index, ord(letter)]).integers(0, 2, (40, 40, 1), np.uint8) * 255
            for folder, kept in ((f"train{letter}", pixels.repeat(3, axis=2)), (f"mask{letter}", pixels)):
                (tmp_path / "set" / folder).mkdir(parents=True, exist_ok=True)
                save_picture(tmp_path / "set" / folder / f"{index}.png", Picture(kept))
    return tmp_path / "set"


def test_changed_outside() -> None:
    given = torch.zeros(2, 3, 4, 4)
    made, mask = given.clone(), torch.zeros(2, 1, 4, 4)
    mask[:, :, :2] = 1
    made[:, :, :2] = 9.0
    assert changed_outside(made, given, mask).item() == 0
    made[0, :, 2:] = 0.5
    assert changed_outside(made, given, mask).item() == pytest.approx(0.25)
    assert changed_outside(made, given, torch.ones_like(mask)).item() == 0


@pytest.mark.parametrize(("method", "letters"), [("cyclegan", "ab"), ("contrast", "a")])
def test_a_run_pays_for_what_it_changes(
    method: str, letters: str, tiny_config: Callable[..., Config], pictures: Path, tmp_path: Path
) -> None:
    hashes = []
    masks = {f"masks_{letter}": str(pictures / f"mask{letter.upper()}") for letter in letters}
    for fields in ({}, masks):
        of = {"path": (str(pictures),), "validation": 0, **fields}
        config = tiny_config(method=method, data=of, train={"length": "2 images"})
        with Display() as display:
            hashes.append(train(config, tmp_path / f"run{len(fields)}", display=display, origin={}).weights_sha256)
    told = (tmp_path / f"run{len(masks)}/stats.jsonl").read_text()
    assert all(f"generator/kept_{letter}" in told for letter in letters)
    assert hashes[0] != hashes[1]
