from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from velogan.observe.samples import grid, write_grid


def test_each_picture_lies_in_its_row_and_column() -> None:
    rows = torch.arange(2 * 3 * 3 * 4 * 5, dtype=torch.uint8).reshape(2, 3, 3, 4, 5)
    sheet = grid(rows, gap=2)
    assert sheet.shape == (2 * 4 + 2, 3 * 5 + 2 * 2, 3)
    for r in range(2):
        for k in range(3):
            tile = sheet[r * 6 : r * 6 + 4, k * 7 : k * 7 + 5]
            np.testing.assert_array_equal(tile, rows[r, k].permute(1, 2, 0).numpy())


def test_floats_run_from_minus_one_to_one_and_what_is_no_number_is_black() -> None:
    values = torch.tensor([-1.0, 0.0, 1.0, 9.0, -9.0, float("nan")]).reshape(1, 6, 1, 1, 1)
    assert grid(values, gap=0)[0, :, 0].tolist() == [0, 128, 255, 255, 0, 0]


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_any_number_of_channels_can_be_seen(channels: int) -> None:
    assert grid(torch.zeros(1, 1, channels, 2, 2)).shape == (2, 2, 3)


def test_a_wrong_number_of_dimensions_is_named() -> None:
    with pytest.raises(ValueError, match=r"R, K, C, H, W.*\(3, 8, 8\)"):
        grid(torch.zeros(3, 8, 8))


def test_the_file_holds_the_grid_and_nothing_else_is_left(tmp_path: Path) -> None:
    rows = torch.rand(2, 2, 3, 8, 8) * 2 - 1
    write_grid(tmp_path / "samples" / "a.png", rows)
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "samples" / "a.png")), grid(rows))
    assert [path.name for path in (tmp_path / "samples").iterdir()] == ["a.png"]
