"""Training and translation read the same file by the same rule, whatever its type and the declared range."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from velogan.data.config import DataConfig
from velogan.data.pictures.images import Picture, read_picture, save_picture
from velogan.data.pictures.values import Range, normalize
from velogan.data.sets.cache import Domain, open_domain
from velogan.data.sets.check import range_warning
from velogan.data.sets.sources import Folder, list_images
from velogan.translate.pictures import output_format, to_images

from ..models import in_memory

CONFIG = DataConfig(preprocess="none", workers=1)
SIDES = (8, 12)
FILES = {
    "eight.png": np.arange(96, dtype=np.uint8).reshape(*SIDES, 1) * 2,
    "twelve.png": np.arange(96, dtype=np.uint16).reshape(*SIDES, 1) * 40,
    "sixteen.tiff": np.arange(96, dtype=np.uint16).reshape(*SIDES, 1) * 600,
    "float.npy": np.arange(96, dtype=np.float32).reshape(*SIDES, 1) * 20 - 900,
}
RANGES: list[Range | None] = [None, (0, 255), (10, 240), (0, 4095), (-1000, 1000)]
WHOLE = [("eight.png", "twelve.png", "sixteen.tiff"), ("eight.png",)]


def _folder(path: Path, names: tuple[str, ...]) -> Folder:
    for name in names:
        save_picture(path / name, Picture(FILES[name]))
    return Folder(path, list_images(path))


@pytest.mark.parametrize("span", RANGES, ids=str)
@pytest.mark.parametrize("names", [*WHOLE, tuple(FILES)], ids=" ".join)
def test_training_and_translation_read_files_alike(tmp_path: Path, span: Range | None, names: tuple[str, ...]) -> None:
    folder = _folder(tmp_path, names)
    try:
        domain = open_domain(folder, CONFIG, test=False, value_range=span)
    except ValueError as error:
        domain, reason = None, str(error)
        assert "range" in reason
    form = {"channels": 1, "dtype": "float32" if span else "uint16", "range": span}
    model = in_memory(input=form, output=form)
    for name in names:
        picture = read_picture(tmp_path / name)
        if domain is not None and name in domain.names:
            seen = normalize(torch.from_numpy(domain.image(domain.names.index(name)).copy()), domain.format.range)
            output_format(model, picture)
            assert torch.equal(seen.permute(2, 0, 1)[None], to_images(model, picture)), name
        elif span is not None:
            reason = "8 bits, 0 to 255" if name == "eight.png" else "16 bits without a sign, 0 to 65535"
            assert name == "eight.png" or span[0] < 0
            with pytest.raises(ValueError, match=reason):
                output_format(model, picture)
            assert domain is None or (reason in dict(domain.skipped)[name])


def _tone(path: Path, name: str, span: Range | None) -> str:
    domain: Domain = open_domain(_folder(path, (name,)), CONFIG, test=False, value_range=span)
    return range_warning(domain.format, domain.sample(16), letter="A")


def test_reports_domains_that_are_almost_black_or_clipped(tmp_path: Path) -> None:
    assert _tone(tmp_path, "twelve.png", None).startswith(
        "almost black: values are 0 to 3800, of 0 to 65535: --data.range-a 0"
    )
    assert _tone(tmp_path, "twelve.png", (0, 4095)) == ""
    assert _tone(tmp_path, "twelve.png", (0, 255)).startswith("93% of the values lie outside 0 to 255")
    (tmp_path / "8").mkdir()
    assert _tone(tmp_path / "8", "eight.png", None) == ""
