"""EXIF and resolution, from files and into files."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from velogan.data.pictures.images import decode, encode
from velogan.data.pictures.metadata import parse_exif

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
MAKE, ORIENTATION, GPS = 0x010F, 0x0112, 0x8825


def _file(form: str, **settings: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, form, **settings)
    return file.getvalue()


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tiff"])
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_and_resolution_are_kept_and_the_orientation_is_applied(form: str, suffix: str) -> None:
    exif = Image.Exif()
    exif[MAKE], exif[ORIENTATION] = "a maker", 6
    exif.get_ifd(GPS)[1] = "N"
    exif = {} if form == "TIFF" else {"exif": exif.tobytes()}
    dpi = {} if form == "WEBP" else {"dpi": (300, 150)}
    picture = decode(_file(form, **dpi, **exif))
    assert picture.pixels.shape == ((6, 8, 3) if form == "TIFF" else (8, 6, 3))
    assert decode(encode(suffix, picture)).pixels.shape == picture.pixels.shape
    with Image.open(io.BytesIO(encode(suffix, picture))) as written:
        if exif and suffix != ".tiff":
            tags = written.getexif()
            assert (tags[MAKE], tags[ORIENTATION], tags.get_ifd(GPS)[1]) == ("a maker", 1, "N")
        if dpi and suffix != ".webp":
            expected = (300, 150) if form == "TIFF" else (150, 300)
            assert written.info["dpi"] == pytest.approx(expected, abs=0.02)


def test_a_resolution_in_exif_alone_is_kept() -> None:
    exif = Image.Exif()
    exif[0x011A], exif[0x011B], exif[0x0128] = 300.0, 150.0, 2
    picture = decode(_file("JPEG", exif=exif.tobytes()).replace(b"JFIF\0", b"XXXX\0"))
    assert picture.metadata.dpi == (300, 150)
    with Image.open(io.BytesIO(encode(".tiff", picture))) as written:
        assert written.info["dpi"] == (300, 150)


@pytest.mark.parametrize(("unit", "inches"), [(1, None), (2, 1), (3, 2.54)])
def test_tiff_keeps_a_resolution_that_has_a_unit(unit: int, inches: float | None) -> None:
    file = io.BytesIO()
    tifffile.imwrite(file, PIXELS, resolution=((10001, 3), (20000, 7)), resolutionunit=unit, metadata=None)
    picture = decode(file.getvalue())
    expected = inches and pytest.approx((10001 / 3 * inches, 20000 / 7 * inches))
    assert picture.metadata.dpi == expected
    assert decode(encode(".tiff", picture)).metadata.dpi == expected


@pytest.mark.parametrize("order", ["<", ">"])
def test_the_thumbnail_is_removed_since_it_shows_the_original(order: str) -> None:
    def number(value: int, size: int) -> bytes:
        return value.to_bytes(size, "little" if order == "<" else "big")

    def entry(tag: int, value: int) -> bytes:
        return number(tag, 2) + number(4, 2) + number(1, 4) + number(value, 4)

    upright = number(ORIENTATION, 2) + number(3, 2) + number(1, 4) + number(8, 2) + b"\0\0"
    start = (b"II*\0" if order == "<" else b"MM\0*") + number(8, 4)
    exif = start + number(1, 2) + upright + number(26, 4)
    exif += number(2, 2) + entry(0x0201, 56) + entry(0x0202, 9) + number(0, 4) + b"THUMBNAIL" + b"maker"
    metadata = parse_exif(exif)
    assert metadata.orientation == 8
    assert metadata.exif is not None
    assert parse_exif(metadata.exif).orientation == 1
    assert b"THUMBNAIL" not in metadata.exif


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(st.binary(max_size=80), st.sampled_from([b"II*\0", b"MM\0*", b"Exif\0\0II*\0\x08\0\0\0"]))
def test_damaged_exif_is_kept_or_dropped(rest: bytes, start: bytes) -> None:
    metadata = parse_exif(start + rest)
    assert 1 <= metadata.orientation <= 8
    assert metadata.exif is None or parse_exif(metadata.exif).orientation == 1
