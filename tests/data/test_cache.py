from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from velogan.data import cache
from velogan.data.cache import Domain, open_domain
from velogan.data.config import DataConfig
from velogan.data.images import read_image, save_image
from velogan.data.sources import Folder, cache_directory, list_images

CONFIG = DataConfig(load_size=32, crop_size=24, workers=2)


def folder_of(directory: Path) -> Folder:
    return Folder(directory, list_images(directory))


def entries() -> list[Path]:
    return sorted((cache_directory(CONFIG) / "prepared").iterdir())


def test_prepares_once_and_shares(make_folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(make_folder("a", count=5, shape=(40, 60)))
    calls: list[tuple[int, int]] = []
    first = open_domain(folder, CONFIG, test=False, progress=lambda *step: calls.append(step))
    assert calls == [(done, 5) for done in range(1, 6)]
    assert (len(first), first.uniform, first.array.shape) == (5, True, (5, 32, 32, 3))

    monkeypatch.setattr(cache, "decode", None)  # a second decoding would fail
    again = open_domain(folder, CONFIG, test=False)
    assert np.array_equal(first.array, again.array)
    assert first.digest == again.digest


def test_touching_changes_nothing_and_content_changes_the_key(make_folder) -> None:
    directory = make_folder("a", count=2)
    first = open_domain(folder_of(directory), CONFIG, test=False).digest
    os.utime(directory / "000.png", (1, 1))
    assert open_domain(folder_of(directory), CONFIG, test=False).digest == first
    assert open_domain(folder_of(directory), CONFIG, test=True).digest != first

    before = (directory / "000.png").stat()
    picture = read_image(directory / "000.png")
    save_image(directory / "000.png", picture[:, ::-1])
    os.utime(directory / "000.png", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert open_domain(folder_of(directory), CONFIG, test=False).digest != first


def test_pictures_of_different_sizes(make_folder) -> None:
    directory = make_folder("a", count=2, shape=(40, 60))
    make_folder("a/b", count=1, shape=(33, 35))
    domain = open_domain(folder_of(directory), DataConfig(preprocess="crop", crop_size=32), test=False)
    assert domain.shapes == ((40, 60, 3), (40, 60, 3), (33, 35, 3))
    assert not domain.uniform
    for index, name in enumerate(domain.names):
        assert np.array_equal(domain.image(index), read_image(directory / name))


def test_unreadable_files_are_left_out_and_named_in_one_line(make_folder) -> None:
    directory = make_folder("a", count=3)
    (directory / "001.png").write_bytes(b"broken")
    for _ in range(2):  # built, then found in the cache
        domain = open_domain(folder_of(directory), CONFIG, test=False)
        assert domain.names == ("000.png", "002.png")
        wanted = "left out 1 of 3 pictures that cannot be read: 001.png (not a picture that can be read)"
        assert domain.skipped_line == wanted
    strict = CONFIG.model_copy(update={"strict": True})
    with pytest.raises(ValueError, match=r"data.path.*001.png cannot be read: not a picture.*data.strict to false"):
        open_domain(folder_of(directory), strict, test=False)


def test_nothing_readable_is_an_error(make_folder) -> None:
    directory = make_folder("a", count=1)
    (directory / "000.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"000.png cannot be read \(nor any of the 1 files in .*the file is empty"):
        open_domain(folder_of(directory), CONFIG, test=False)


@pytest.mark.parametrize("damage", ["pixels", "index"])
def test_a_damaged_entry_is_built_anew(make_folder, damage: str) -> None:
    folder = folder_of(make_folder("a", count=2))
    wanted = open_domain(folder, CONFIG, test=False).array.copy()
    (entry,) = entries()
    file = entry / ("pixels.bin" if damage == "pixels" else "index.json")
    file.write_bytes(file.read_bytes()[:-7])
    assert np.array_equal(open_domain(folder, CONFIG, test=False).array, wanted)
    assert entries() == [entry]


def test_two_builders_at_once(make_folder) -> None:
    folder = folder_of(make_folder("a", count=12))
    with ThreadPoolExecutor(4) as pool:
        domains = list(pool.map(lambda _: open_domain(folder, CONFIG, test=False), range(4)))
    assert all(np.array_equal(domain.array, domains[0].array) for domain in domains)
    assert len(entries()) == 1


def test_domain_of_arrays() -> None:
    images = [np.full((2, 3, 3), 7, np.uint8), np.full((4, 2, 3), 9, np.uint8)]
    domain = Domain.from_arrays(images)
    assert len(domain) == 2
    assert domain.shape(1) == (4, 2, 3)
    assert np.array_equal(domain.image(1), images[1])
