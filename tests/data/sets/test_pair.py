from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from velogan.config import Config
from velogan.data.pictures.images import Picture, save_picture
from velogan.data.sets.pair import open_data
from velogan.observe.progress import Display


def test_near_duplicates_across_the_validation_split_are_said_and_groups_mend_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Domain A: twenty scenes, two frames each that differ by one level. Domain B: twenty different pictures."""
    random = np.random.default_rng(0)
    for domain in "AB":
        (tmp_path / domain).mkdir()
        for number in range(20):
            scene = random.integers(0, 250, (24, 24, 3), np.uint8)
            frames = [(f"scene{number}-{frame}", frame) for frame in (0, 1)] if domain == "A" else [(f"{number}", 0)]
            for name, frame in frames:
                save_picture(tmp_path / domain / f"{name}.png", Picture(scene + np.uint8(frame)))

    def said(**data: object) -> str:
        path = (str(tmp_path / "A"), str(tmp_path / "B"))
        capsys.readouterr()
        with Display() as display:
            open_data(
                Config().change(data={"path": path, "crop_size": 16, **data}).data, task=display.task, say=display.say
            )
        return capsys.readouterr().err

    found = said()
    assert found.count("4 of 4 held-out pictures have near duplicates in training") == 1
    assert "domain A: " in found
    assert "--data.group REGEX" in found
    assert "near duplicates" not in said(group="scene[0-9]+|.+")
    assert "near duplicates" not in said(validation=0)
