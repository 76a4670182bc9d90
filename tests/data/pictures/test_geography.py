"""Where pictures lie on the Earth, and pixels without data, survive a translation."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image
from tifffile import DATATYPE

from velogan.data.pictures import geography
from velogan.data.pictures.geography import read_world_file
from velogan.data.pictures.images import Picture, decode, read_picture, save_picture
from velogan.data.sets.sources import Folder, describe_skipped_files
from velogan.translate.jobs import Job

PLACES: list[Any] = [
    (33550, DATATYPE.DOUBLE, 3, (10.0, 10.0, 0.0), True),
    (33922, DATATYPE.DOUBLE, 6, (0.0, 0.0, 0.0, 399960.0, 5300040.0, 0.0), True),
    (34735, DATATYPE.SHORT, 8, (1, 1, 0, 1, 3072, 0, 1, 32632), True),
    (34737, DATATYPE.ASCII, 0, "WGS 84 / UTM zone 32N|", True),
]
WORLD = "10.0\n0.0\n0.0\n-10.0\n399965.0\n5300035.0\n"


def _tiff(pixels: np.ndarray, *more: Any) -> bytes:
    file = io.BytesIO()
    kind = "rgb" if pixels.ndim == 3 else "minisblack"
    tifffile.imwrite(file, pixels, photometric=kind, metadata=None, extratags=[*PLACES, *more])
    return file.getvalue()


def _nodata(text: str) -> Any:
    return (42113, DATATYPE.ASCII, 0, text, True)


def _tags(file: Path) -> dict[int, Any]:
    with tifffile.TiffFile(file) as opened:
        page = opened.pages[0]
        assert isinstance(page, tifffile.TiffPage)
        return {code: page.tags.valueof(code) for code in (*(one[0] for one in PLACES), 42113)}


def _again(picture: Picture, file: Path, *, by: float) -> np.ndarray:
    """The pixels of a translation that is so much brighter, as they are written."""
    brighter = (picture.pixels.astype(np.float64) + by).astype(picture.pixels.dtype)
    save_picture(file, Picture(brighter, picture.alpha, metadata=picture.metadata))
    return tifffile.imread(file)


def test_places_are_kept_and_nodata_is_filled_and_put_back(tmp_path: Path):
    pixels = np.full((6, 8, 3), 100, np.uint8)
    pixels[1, :4] = 0
    pixels[2, 2] = (0, 0, 9)  # only one of its channels holds something
    read = decode(_tiff(pixels, _nodata("0")))
    assert read.pixels[1, 0].tolist() == [98, 98, 98]  # the mean of what holds something
    assert read.pixels[2, 2].tolist() == [0, 0, 9]
    written = _again(read, tmp_path / "a.tif", by=5)
    assert (written[1, :4] == 0).all()
    assert (written[0] == 105).all()
    tags = _tags(tmp_path / "a.tif")
    assert tags[42113] == "0"
    assert [tags[one[0]] for one in PLACES] == [one[3] for one in PLACES]


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize("holes", [0, 4])
def test_what_is_measured_never_becomes_a_hole(kind: type, holes: int, tmp_path: Path):
    pixels = np.full((6, 8, 3), 10, kind)
    pixels[0, :holes] = 0
    pixels[2, 2], pixels[3, 3] = 5, (5, 9, 9)
    read = decode(_tiff(pixels, _nodata("0")))
    darker = read.metadata.geography.avoid_nodata((read.pixels.astype(np.float64) - 5).astype(kind))
    written = _again(Picture(darker, metadata=read.metadata), tmp_path / "a.tif", by=0)
    assert (written[0, :holes] == 0).all()
    assert (written == 0).any(axis=2).sum() == holes
    assert 0 < written[2, 2, 0] < 2
    assert written[3, 3, 1] == 4
    assert geography.Geography(nodata=255).avoid_nodata(np.full((1, 1, 1), 255, np.uint8)) == 254


def test_a_tag_that_is_no_number_stays(tmp_path: Path):
    _again(decode(_tiff(np.full((4, 4), 7, np.uint8), _nodata("abc"))), tmp_path / "a.tif", by=1)
    assert _tags(tmp_path / "a.tif")[42113] == "abc"


@pytest.mark.parametrize("said", ["", "nan", "-9999"])
def test_floats_without_data_are_filled_and_put_back(said: str, tmp_path: Path):
    pixels = np.linspace(0, 1, 48, dtype=np.float32).reshape(6, 8)
    pixels[3, 3:] = np.nan if said != "-9999" else -9999
    read = decode(_tiff(pixels, *([_nodata(said)] if said else [])))
    assert 0 < read.pixels[3, 3, 0] < 1
    written = _again(read, tmp_path / "a.tif", by=1)
    np.testing.assert_array_equal(written[3, 3:], pixels[3, 3:])
    np.testing.assert_allclose(written[:3], pixels[:3] + 1)
    assert _tags(tmp_path / "a.tif")[42113] == (said or "nan")


@pytest.mark.parametrize(("kind", "said"), [(np.uint8, "0"), (np.uint16, "65535"), (np.float32, "nan")])
def test_a_tile_without_any_data_stays_one_and_is_not_trained_on(kind: type, said: str, tmp_path: Path):
    pixels = np.full((6, 8), float(said)).astype(kind)
    (tmp_path / "in.tif").write_bytes(_tiff(pixels, _nodata(said)))
    read = read_picture(tmp_path / "in.tif")
    assert (read.pixels == 0).all()
    np.testing.assert_array_equal(_again(read, tmp_path / "a.tif", by=5), pixels)
    assert _tags(tmp_path / "a.tif")[42113] == said
    with pytest.raises(ValueError, match="no pixel has data"):
        Folder(tmp_path, ("in.tif",)).read("in.tif")


@pytest.mark.parametrize("count", [0, 3, 48])
def test_a_value_beyond_floats_of_32_bits_becomes_nan(count: int, tmp_path: Path):
    pixels = np.linspace(0, 1, 48)
    pixels[:count] = -np.finfo(np.float64).max
    read = decode(_tiff(pixels.reshape(6, 8), _nodata("-1.7976931348623157e+308")))
    written = _again(read, tmp_path / "a.tif", by=1).ravel()
    assert np.isnan(written[:count]).all()
    np.testing.assert_allclose(written[count:], pixels[count:] + 1, rtol=1e-6)
    assert _tags(tmp_path / "a.tif")[42113] == "nan"


def test_a_value_that_the_translation_cannot_hold_is_an_error(tmp_path: Path):
    read = decode(_tiff(np.where(np.eye(6), np.float32(-9999), np.float32(1)), _nodata("-9999")))
    deep = Picture(np.zeros((6, 6, 1), np.uint16), metadata=read.metadata)
    with pytest.raises(ValueError, match="nodata value -9999 of the input cannot be stored as uint16"):
        save_picture(tmp_path / "a.tif", deep)


def test_infinity_and_nan_elsewhere_are_refused_as_before(tmp_path: Path):
    pixels = np.ones((4, 4), np.float32)
    pixels[0, 0] = np.inf
    with pytest.raises(ValueError, match="1 of 16 pixel values are NaN or infinite"):
        decode(_tiff(pixels))


def test_a_world_file_goes_along(tmp_path: Path):
    pixels = np.full((6, 8, 3), 100, np.uint8)
    save_picture(tmp_path / "in.jpg", Picture(pixels))
    (tmp_path / "in.jgw").write_text(WORLD)
    (tmp_path / "in.prj").write_text('PROJCS["UTM"]')
    job = Job(name="in.jpg", source=tmp_path / "in.jpg", target=tmp_path / "out" / "in.png")
    job.save(read_picture(job.source))
    assert sorted(one.name for one in job.target.parent.iterdir()) == ["in.pgw", "in.png", "in.prj"]
    assert read_world_file(job.target) == (WORLD, 'PROJCS["UTM"]')


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_world_file_is_turned_with_its_picture(orientation: int, tmp_path: Path):
    down, across = np.mgrid[:6, :8]
    pixels = np.stack([down, across, down * 0], axis=-1).astype(np.uint8)  # each says its row and column in the file
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(tmp_path / "in.png", exif=exif.tobytes())
    (tmp_path / "in.pgw").write_text("2\n0.5\n0.25\n-3\n100\n200\n")
    job = Job(name="in.png", source=tmp_path / "in.png", target=tmp_path / "out" / "in.png")
    job.save(read := read_picture(job.source))
    written = read_world_file(job.target)
    assert written is not None
    by_x, by_x_of_y, by_y_of_x, by_y, x, y = map(float, written[0].split())
    for row, column in ((0, 0), (2, 3), (read.pixels.shape[0] - 1, read.pixels.shape[1] - 1)):
        was_row, was_column, _ = map(int, read.pixels[row, column])
        place = (x + by_x * column + by_y_of_x * row, y + by_x_of_y * column + by_y * row)
        assert place == (100 + 2 * was_column + 0.25 * was_row, 200 + 0.5 * was_column - 3 * was_row)


def test_other_text_is_no_world_file(tmp_path: Path):
    (tmp_path / "in.jgw").write_text("not numbers\n" * 6)
    assert read_world_file(tmp_path / "in.jpg") is None


@pytest.mark.parametrize(("picture", "world", "prj"), [("A.TIF", "A.TFW", "A.PRJ"), ("a.tif", "a.Tfw", "a.Prj")])
def test_a_world_file_in_capitals_goes_along_and_is_not_left_out(picture: str, world: str, prj: str, tmp_path: Path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / picture).write_bytes(_tiff(np.full((6, 8), 100, np.uint8)))
    (folder / world).write_text(WORLD)
    (folder / prj).write_text("PROJCS")
    assert read_world_file(folder / picture) == (WORLD, "PROJCS")
    assert describe_skipped_files(folder, scans=True) == ""
    (folder / "other.tfw").write_text(WORLD)
    assert describe_skipped_files(folder, scans=True).endswith(": 1 .tfw")
