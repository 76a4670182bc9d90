from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from velogan.data.config import DataConfig
from velogan.data.sets.sources import find_sources
from velogan.evaluation.samples import _load_examples


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_damaged_truth_leaves_truths_out_of_the_grids(is_damaged: bool, tmp_path: Path):
    for folder in ("trainA", "trainB", "testA", "testB", "truthA"):
        (tmp_path / "set" / folder).mkdir(parents=True)
        for number in range(4):
            Image.fromarray(np.full((16, 16, 3), 50 * number, np.uint8)).save(
                tmp_path / "set" / folder / f"{number}.png"
            )
    if is_damaged:
        (tmp_path / "set" / "truthA" / "2.png").write_bytes(b"no picture")
    config = DataConfig(path=(str(tmp_path / "set"),), crop_size=16, load_size=16, cache_dir=str(tmp_path / "cache"))
    sources = find_sources(config)
    names, inputs, truths = _load_examples(sources.a, sources.b, config, 4, 4)
    assert names == [f"{number}.png" for number in range(4)]
    assert inputs.shape == (4, 3, 16, 16)
    assert (truths is None) == is_damaged
