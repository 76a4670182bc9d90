from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from velogan.data.pictures.images import Picture, encode


@pytest.fixture
def picture() -> Callable[..., bytes]:
    """The file of a picture of random pixels."""

    def make(seed: int, suffix: str = ".png", size: int = 8) -> bytes:
        pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)
        return encode(suffix, Picture(pixels))

    return make


@pytest.fixture
def shard() -> Callable[[Path, Mapping[str, bytes]], Path]:
    """A tar file of members by name, in their order."""

    def make(path: Path, members: Mapping[str, bytes]) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w") as tar:
            for name, data in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return path

    return make
