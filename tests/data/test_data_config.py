from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from velogan.data.config import DataConfig


def test_load_size_follows_the_crop() -> None:
    assert DataConfig().load_side == 286
    assert DataConfig(crop_size=128).load_side == 143
    assert DataConfig(crop_size=128, load_size=128).load_side == 128
    assert DataConfig(load_size=200, preprocess="crop").crop_size == 256  # nothing is resized


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"crop_size": 30}, "crop_size"),
        ({"batch_size": 0}, "batch_size"),
        ({"path": ()}, "path"),
        ({"path": ("",)}, "path"),
        ({"colour": True}, "colour"),
        ({"load_size": 200}, r"crop_size=256 is larger than load_size=200.*set load_size to at least"),
        *(
            ({"rotate90": True, "preprocess": mode}, rf"rotate90=true needs .*preprocess={mode} .*rotate90=false")
            for mode in ("none", "scale_width")
        ),
    ],
)
def test_rejects_settings(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DataConfig(**fields)
