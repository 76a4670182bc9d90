from __future__ import annotations

import pytest
from pydantic import ValidationError

from velogan.data.config import DataConfig, Preprocess


def test_load_size_follows_the_crop() -> None:
    assert DataConfig().load_side == 286
    assert DataConfig(crop_size=128).load_side == 143
    assert DataConfig(crop_size=128, load_size=128).load_side == 128


def test_crop_larger_than_load_size_names_field_value_and_mend() -> None:
    with pytest.raises(ValidationError, match=r"crop_size=256 is larger than load_size=200.*set load_size to at least"):
        DataConfig(load_size=200)
    assert DataConfig(load_size=200, preprocess="crop").crop_size == 256  # nothing is resized there


@pytest.mark.parametrize(
    "field", [{"crop_size": 30}, {"batch_size": 0}, {"path": ()}, {"path": ("",)}, {"colour": True}]
)
def test_refuses(field: dict) -> None:
    with pytest.raises(ValidationError):
        DataConfig(**field)


@pytest.mark.parametrize("preprocess", ["none", "scale_width"])
def test_only_squares_are_turned(preprocess: Preprocess) -> None:
    with pytest.raises(ValueError, match=rf"rotate90=true needs squares, but preprocess={preprocess} .*rotate90=false"):
        DataConfig(rotate90=True, preprocess=preprocess)
    DataConfig(flip_vertical=True, preprocess=preprocess)
