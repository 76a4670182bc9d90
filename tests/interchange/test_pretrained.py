"""The translator that comes with velogan."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from velogan.cli import main
from velogan.data.pictures.images import read_picture
from velogan.data.rendered.apples2oranges import render_folder
from velogan.interchange.hub import PRETRAINED, resolve_model_path


def test_translates_new_pictures(tmp_path: Path) -> None:
    scenes = render_folder(tmp_path / "scenes", count=1, test_count=6, image_size=64, seed=7)
    assert main(["translate", "apples2oranges", str(scenes / "testA"), str(tmp_path / "out"), "--fp32"]) == 0

    def error(folder: Path) -> float:
        """Return the mean squared difference from the truth, on the objects."""
        differences = []
        for name in sorted(path.name for path in folder.iterdir()):
            image, truth = (read_picture(of / name).pixels.astype(float) for of in (folder, scenes / "truthA"))
            differences.append((image - truth)[read_picture(scenes / "maskA" / name).pixels[..., 0] > 127])
        return float(np.square(np.concatenate(differences)).mean())

    assert 10 * np.log10(error(scenes / "testA") / error(tmp_path / "out")) > 9  # dB


def test_an_existing_path_comes_first(tmp_path: Path, monkeypatch) -> None:
    assert all(resolve_model_path(name).is_file() for name in PRETRAINED)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "apples2oranges").mkdir()
    assert resolve_model_path("apples2oranges") == Path("apples2oranges")
