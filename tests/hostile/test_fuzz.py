"""A search for bytes that make reading a picture do anything but give it or say why not."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from velogan.data.config import DataConfig
from velogan.data.pictures.images import decode, encode
from velogan.data.pictures.picture import Picture
from velogan.data.pictures.preprocess import prepare, resize

from .conftest import MAKERS

VALID: dict[str, bytes] = MAKERS["valid"]()
_GREY, _COLOUR = np.arange(80, dtype=np.uint8).reshape(8, 10), np.arange(240, dtype=np.uint8).reshape(8, 10, 3)
VALID |= {
    "alpha.png": encode(".png", Picture(_COLOUR.astype(np.uint16) * 257, _GREY.astype(np.uint16))),
    "cmyk.tif": MAKERS["tiff"](np.dstack([_COLOUR, _GREY]), photometric="separated"),
    "packbits.tif": MAKERS["tiff"](_GREY, compression="packbits"),
    "zstd.tif": MAKERS["tiff"](_GREY, compression="zstd"),
    "bits.ppm": b"P1\n3 2\n1 0 1 0 1 1\n",
}


def _reads_or_rejects(data: bytes) -> None:
    reason, picture = "", None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            picture = decode(data)
        except ValueError as error:
            reason = str(error)
    if picture is None:
        assert reason.isprintable()
        assert 0 < len(reason) < 300
        return
    assert picture.pixels.ndim == 3
    assert picture.pixels.dtype in (np.uint8, np.uint16, np.float32)
    assert picture.pixels.size


WORDS = ["0", "1", "2", "9", "255", "256", "65535", "65536", "-1", "99999999", "#", "\n", "x"]
FUZZ = settings(
    max_examples=300, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)  # fmt: skip


@FUZZ
@given(name=st.sampled_from(sorted(VALID)), seed=st.integers(0, 2**32))
def test_reads_or_rejects_changed_headers(name: str, seed: int) -> None:
    _reads_or_rejects(MAKERS["fuzz"](VALID[name], random.Random(seed)))


@FUZZ
@given(
    name=st.sampled_from(sorted(VALID)),
    other=st.sampled_from(sorted(VALID)),
    cut=st.floats(0, 1),
    start=st.floats(0, 1),
    put=st.binary(max_size=12),
)
def test_reads_or_rejects_cut_and_joined_files(name: str, other: str, cut: float, start: float, put: bytes) -> None:
    first, second = VALID[name], VALID[other]
    _reads_or_rejects(first[: int(cut * len(first))] + put + second[int(start * len(second)) :])


@FUZZ
@given(kind=st.sampled_from([data[:12] for data in VALID.values()]), rest=st.binary(max_size=300))
def test_reads_or_rejects_anything_after_a_valid_start(kind: bytes, rest: bytes) -> None:
    _reads_or_rejects(kind + rest)


@FUZZ
@given(
    kind=st.sampled_from(["P1", "P2", "P3", "P4", "P5", "P6"]),
    words=st.lists(st.sampled_from(WORDS), max_size=9),
)
def test_reads_or_rejects_any_ppm(kind: str, words: list[str]) -> None:
    _reads_or_rejects(" ".join([kind, *words]).encode())


@pytest.mark.parametrize("shape", [(60_000, 1), (1, 60_000), (3, 3), (1, 1)])
@pytest.mark.parametrize("mode", ["resize_and_crop", "crop", "scale_width", "scale_width_and_crop", "none"])
def test_prepares_or_rejects_odd_shapes(shape: tuple[int, int], mode: str) -> None:
    config = DataConfig.model_validate({"preprocess": mode, "crop_size": 32})
    picture = np.zeros((*shape, 3), np.uint8)
    if shape[0] > 1000 and mode.startswith("scale_width"):  # 36 pixels wide, it would be two million high
        with pytest.raises(ValueError, match="pixels"):
            prepare(picture, config, test=False)
    else:
        assert prepare(picture, config, test=False).nbytes < 2**28


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_large_pictures_are_resized_like_others(dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = np.random.default_rng(0).integers(0, 255, (70, 50, 3)).astype(dtype)
    usual = resize(picture, 31, 20)
    monkeypatch.setattr("velogan.data.pictures.preprocess._LARGE", 0)
    np.testing.assert_array_equal(resize(picture, 31, 20), usual)
