from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from velogan.data.pictures.images import Picture, save_picture


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("VELOGAN_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def make_folder(tmp_path: Path):
    """Write random pictures: `make_folder("trainA", count=3, shape=(40, 50))`."""

    def make(name: str, *, count: int, shape: tuple[int, int] = (48, 48), seed: int = 0, suffix: str = ".png"):
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(seed)
        for index in range(count):
            picture = Picture(random.integers(0, 256, (*shape, 3), np.uint8))
            save_picture(folder / f"{index:03d}{suffix}", picture)
        return folder

    return make
