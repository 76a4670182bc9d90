from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from velogan.data.config import DataConfig
from velogan.data.pictures.images import Picture, read_picture, save_picture
from velogan.data.sets import sources
from velogan.data.sets.cache import Domain, PixelFile, open_domain
from velogan.data.sets.sources import Folder, cache_directory, list_images

CONFIG = DataConfig(load_size=32, crop_size=24, workers=2)


def folder_of(directory: Path) -> Folder:
    return Folder(directory, list_images(directory))


def all_images(domain: Domain) -> np.ndarray:
    return np.stack([domain.image(index) for index in range(len(domain))])


def entries() -> list[Path]:
    return sorted((cache_directory(CONFIG) / "prepared").iterdir())


def test_prepares_once_and_shares(make_folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(make_folder("a", count=5, shape=(40, 60)))
    calls: list[tuple[int, int]] = []
    first = open_domain(folder, CONFIG, test=False, progress=lambda *step: calls.append(step))
    assert calls == [(done, 5) for done in range(1, 6)]
    assert (len(first), first.has_one_shape, first.shapes[0]) == (5, True, (32, 32, 3))

    monkeypatch.setattr(sources, "read_picture", None)  # a second decoding would fail
    again = open_domain(folder, CONFIG, test=False)
    assert np.array_equal(all_images(first), all_images(again))
    assert first.digest == again.digest


def test_a_picture_that_could_not_be_read_is_read_later(make_folder, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_folder("a", count=3)
    (directory / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(12))
    with monkeypatch.context() as patch:
        patch.setattr("velogan.data.sets.cache.can_read_heic", lambda: False)
        open_domain(folder_of(directory), CONFIG, test=False)
    open_domain(folder_of(directory), CONFIG, test=False)
    assert len(entries()) == 2

    def stale(path: Path, **_: object) -> Picture:
        raise OSError(errno.ESTALE, "Stale file handle")

    save_picture(directory / "new.png", Picture(np.zeros((40, 40, 3), np.uint8)))
    with monkeypatch.context() as patch:
        patch.setattr(sources, "read_picture", stale)
        with pytest.raises(ValueError, match=r"000.png could be read, and then could not \(Stale file handle\)"):
            open_domain(folder_of(directory), CONFIG, test=False)
    assert len(open_domain(folder_of(directory), CONFIG, test=False)) == 4


def test_the_key_depends_on_content_and_not_on_times(make_folder) -> None:
    directory = make_folder("a", count=2)
    first = open_domain(folder_of(directory), CONFIG, test=False).digest
    os.utime(directory / "000.png", (1, 1))
    assert open_domain(folder_of(directory), CONFIG, test=False).digest == first
    assert open_domain(folder_of(directory), CONFIG, test=True).digest != first

    before = (directory / "000.png").stat()
    picture = read_picture(directory / "000.png").pixels
    save_picture(directory / "000.png", Picture(picture[:, ::-1]))
    os.utime(directory / "000.png", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert open_domain(folder_of(directory), CONFIG, test=False).digest != first


def test_pictures_of_different_sizes(make_folder) -> None:
    directory = make_folder("a", count=2, shape=(40, 60))
    make_folder("a/b", count=1, shape=(33, 35))
    domain = open_domain(folder_of(directory), DataConfig(preprocess="crop", crop_size=32), test=False)
    assert domain.shapes == ((40, 60, 3), (40, 60, 3), (33, 35, 3))
    assert not domain.has_one_shape
    for index, name in enumerate(domain.names):
        assert np.array_equal(domain.image(index), read_picture(directory / name).pixels)


def test_reports_unreadable_files_in_one_line_and_rejects_a_folder_of_them(make_folder) -> None:
    directory = make_folder("a", count=3)
    (directory / "001.png").write_bytes(b"broken")
    for _ in range(2):  # prepared, then cached
        domain = open_domain(folder_of(directory), CONFIG, test=False)
        assert domain.names == ("000.png", "002.png")
        line = "skipped 1 of 3 pictures that cannot be read: 001.png (not a picture that can be read)"
        assert domain.skipped_line == line
    for name in ("000.png", "002.png"):
        (directory / name).write_bytes(b"")
    message = r"000.png cannot be read \(nor any other of the 3 files in .*the file is empty"
    with pytest.raises(ValueError, match=message):
        open_domain(folder_of(directory), CONFIG, test=False)


def test_pictures_are_converted_to_the_deepest_type_and_common_channels(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    grey16 = random.integers(0, 65536, (32, 32, 1), np.uint16)
    colour8 = random.integers(0, 256, (32, 32, 3), np.uint8)
    save_picture(tmp_path / "a.png", Picture(grey16))
    save_picture(tmp_path / "b.png", Picture(colour8))
    domain = open_domain(folder_of(tmp_path), CONFIG, test=False)
    assert (domain.format.channels, domain.format.dtype, domain.format.range) == (3, "uint16", None)
    assert np.array_equal(domain.image(0), np.repeat(grey16, 3, axis=2))
    assert np.array_equal(domain.image(1), colour8.astype(np.uint16) * 257)
    grey = open_domain(folder_of(tmp_path), CONFIG, test=False, channels=1)
    assert grey.shapes == ((32, 32, 1), (32, 32, 1))
    assert np.array_equal(grey.image(0), grey16)
    save_picture(tmp_path / "c.npy", Picture(np.zeros((32, 32, 5), np.uint8)))
    skipped = open_domain(folder_of(tmp_path), CONFIG, test=False).skipped
    assert [name for name, _ in skipped] == ["b.png"]
    assert "3 channels, but 5 are needed" in skipped[0][1]


def test_rejects_floats_without_a_declared_range(tmp_path: Path) -> None:
    hounsfield = np.linspace(-1024, 3071, 32 * 32, dtype=np.float32).reshape(32, 32, 1)
    np.save(tmp_path / "ct.npy", hounsfield)
    with pytest.raises(ValueError, match=r"data\.range_a.*ct\.npy has -1024 to 3071.*--data\.range-a"):
        open_domain(folder_of(tmp_path), CONFIG, test=False)
    domain = open_domain(folder_of(tmp_path), CONFIG, test=False, value_range=(-1000.0, 1000.0))
    assert (domain.format.dtype, domain.format.range) == ("float32", (-1000.0, 1000.0))
    assert np.array_equal(domain.image(0), hounsfield)


def test_reads_on_after_a_partial_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(100, dtype=np.uint16)
    values.tofile(tmp_path / "pixels.bin")
    pixels, read = PixelFile(tmp_path / "pixels.bin", values.dtype), os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, buffers, offset: read(file, [buffers[0][:7]], offset))
    assert np.array_equal(pixels[10:90], values[10:90])
    with pytest.raises(OSError, match="truncated after it was opened"):
        pixels[10:101]


@pytest.mark.parametrize("damage", ["flipped", "truncated", "index"])
def test_reports_and_replaces_damaged_entries(make_folder, damage: str) -> None:
    folder = folder_of(make_folder("a", count=2))
    before = all_images(open_domain(folder, CONFIG, test=False))
    (entry,) = entries()
    pixels = entry / "pixels.bin"
    content = bytearray(pixels.read_bytes())
    if damage == "flipped":
        content[1000] ^= 1
    pixels.write_bytes(content[:-1] if damage == "truncated" else content)
    if damage == "index":
        (entry / "index.json").write_text("{")
    again = open_domain(folder, CONFIG, test=False)
    assert str(entry) in again.note
    assert "again" in again.note
    assert np.array_equal(all_images(again), before)
    assert open_domain(folder, CONFIG, test=False).note == ""


def test_several_builders_at_once_leave_one_entry(make_folder) -> None:
    folder = folder_of(make_folder("a", count=12))
    with ThreadPoolExecutor(4) as pool:
        domains = list(pool.map(lambda _: open_domain(folder, CONFIG, test=False), range(4)))
    assert all(np.array_equal(all_images(domain), all_images(domains[0])) for domain in domains)
    assert len(entries()) == 1
