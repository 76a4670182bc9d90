from __future__ import annotations

from collections.abc import Callable

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
