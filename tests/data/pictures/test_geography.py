"""Georeferences and pixels without data survive a translation."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from tifffile import DATATYPE

from velogan.data.pictures.geography import Geography
from velogan.data.pictures.images import Picture, decode, read_picture, save_picture
from velogan.data.sets.sources import Folder

LOCATION: list[Any] = [
    (33550, DATATYPE.DOUBLE, 3, (10.0, 10.0, 0.0), True),
    (33922, DATATYPE.DOUBLE, 6, (0.0, 0.0, 0.0, 399960.0, 5300040.0, 0.0), True),
    (34735, DATATYPE.SHORT, 8, (1, 1, 0, 1, 3072, 0, 1, 32632), True),
    (34737, DATATYPE.ASCII, 0, "WGS 84 / UTM zone 32N|", True),
]
NODATA = 42113
WORLD = "10.0\n0.0\n0.0\n-10.0\n399965.0\n5300035.0\n"


def _tiff(pixels: np.ndarray, nodata: str = "") -> bytes:
    file = io.BytesIO()
    kind = "rgb" if pixels.ndim == 3 else "minisblack"
    tags = [*LOCATION, *([(NODATA, DATATYPE.ASCII, 0, nodata, True)] if nodata else [])]
    tifffile.imwrite(file, pixels, photometric=kind, metadata=None, extratags=tags)
    return file.getvalue()


def _tags(file: Path) -> dict[int, Any]:
    with tifffile.TiffFile(file) as opened:
        page: Any = opened.pages[0]
        return {code: page.tags.valueof(code) for code in (*(tag[0] for tag in LOCATION), NODATA)}


def _save_brighter(picture: Picture, file: Path, *, by: float) -> np.ndarray:
    """Save a translation that adds `by`, and return its pixels as written."""
    brighter = (picture.pixels.astype(np.float64) + by).astype(picture.pixels.dtype)
    save_picture(file, Picture(brighter, picture.alpha, metadata=picture.metadata))
    return tifffile.imread(file)


def test_location_is_kept_and_nodata_is_filled_and_restored(tmp_path: Path) -> None:
    pixels = np.full((6, 8, 3), 100, np.uint8)
    pixels[1, :4] = 0
    pixels[2, 2] = (0, 0, 9)  # only one of its channels has data
    picture = decode(_tiff(pixels, "0"))
    assert picture.pixels[1, 0].tolist() == [98, 98, 98]  # the mean of the data
    assert picture.pixels[2, 2].tolist() == [0, 0, 9]
    written = _save_brighter(picture, tmp_path / "a.tif", by=5)
    assert (written[1, :4] == 0).all()
    assert (written[0] == 105).all()
    tags = _tags(tmp_path / "a.tif")
    assert [tags[tag[0]] for tag in LOCATION] == [tag[3] for tag in LOCATION]
    assert tags[NODATA] == "0"


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize("empty", [0, 4])
def test_a_translated_value_never_becomes_nodata(kind: type, empty: int, tmp_path: Path) -> None:
    pixels = np.full((6, 8, 3), 10, kind)
    pixels[0, :empty] = 0
    pixels[2, 2], pixels[3, 3] = 5, (5, 9, 9)
    picture = decode(_tiff(pixels, "0"))
    darker = picture.metadata.geography.avoid_nodata((picture.pixels.astype(np.float64) - 5).astype(kind))
    written = _save_brighter(Picture(darker, metadata=picture.metadata), tmp_path / "a.tif", by=0)
    assert (written[0, :empty] == 0).all()
    assert (written == 0).any(axis=2).sum() == empty
    assert 0 < written[2, 2, 0] < 2
    assert written[3, 3, 1] == 4
    assert Geography(nodata=255).avoid_nodata(np.full((1, 1, 1), 255, np.uint8)) == 254


@pytest.mark.parametrize(
    ("dtype", "value", "tag", "written_tag"),
    [
        ("float32", np.nan, "", "nan"),
        ("float32", np.nan, "nan", "nan"),
        ("float32", -9999, "-9999", "-9999"),
        ("float64", -np.finfo(np.float64).max, "-1.7976931348623157e+308", "nan"),  # beyond float32
        ("float32", 7, "abc", "abc"),  # not a number, so that no pixel equals it
    ],
)
@pytest.mark.parametrize("count", [0, 3, 48])
def test_floats_without_data(dtype: str, value: float, tag: str, written_tag: str, count: int, tmp_path: Path) -> None:
    pixels = np.linspace(0, 1, 48, dtype=dtype)
    pixels[:count] = value
    (tmp_path / "in.tif").write_bytes(_tiff(pixels.reshape(6, 8), tag))
    picture = read_picture(tmp_path / "in.tif")
    written = _save_brighter(picture, tmp_path / "a.tif", by=1).ravel()
    has_data = tag == "abc"
    assert has_data or 0 <= picture.pixels.min() <= picture.pixels.max() <= 1
    expected = pixels[:count] + 1 if has_data else np.full(count, float(written_tag))
    np.testing.assert_array_equal(written[:count], expected.astype(np.float32))
    np.testing.assert_allclose(written[count:], pixels[count:] + 1, rtol=1e-6)
    assert _tags(tmp_path / "a.tif")[NODATA] == (written_tag if tag or count else None)


@pytest.mark.parametrize(("kind", "nodata"), [(np.uint8, "0"), (np.uint16, "65535"), (np.float32, "nan")])
def test_a_tile_without_data_is_written_as_such_and_not_trained_on(kind: type, nodata: str, tmp_path: Path) -> None:
    pixels = np.full((6, 8), float(nodata)).astype(kind)
    (tmp_path / "in.tif").write_bytes(_tiff(pixels, nodata))
    picture = read_picture(tmp_path / "in.tif")
    assert (picture.pixels == 0).all()
    np.testing.assert_array_equal(_save_brighter(picture, tmp_path / "a.tif", by=5), pixels)
    assert _tags(tmp_path / "a.tif")[NODATA] == nodata
    with pytest.raises(ValueError, match="no pixel has data"):
        Folder(tmp_path, ("in.tif",)).read("in.tif")


def test_rejects_nodata_that_the_result_cannot_hold_and_infinity(tmp_path: Path) -> None:
    picture = decode(_tiff(np.where(np.eye(6), np.float32(-9999), np.float32(1)), "-9999"))
    with pytest.raises(ValueError, match="nodata value -9999 of the input cannot be stored as uint16"):
        save_picture(tmp_path / "a.tif", Picture(np.zeros((6, 6, 1), np.uint16), metadata=picture.metadata))
    pixels = np.ones((4, 4), np.float32)
    pixels[0, 0] = np.inf
    with pytest.raises(ValueError, match=r"1 of 16 pixel values are NaN or infinite: replace them"):
        decode(_tiff(pixels))
