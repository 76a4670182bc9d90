"""Domains of pictures that lie in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from velogan.data.pictures.values import PixelFormat, Range
from velogan.data.sets.cache import Domain


def domain_in_memory(images: Sequence[np.ndarray], *, value_range: Range | None = None) -> Domain:
    """A domain of `(H, W, C)` arrays, which have one type and one number of channels."""
    names = tuple(f"{index:05d}" for index in range(len(images)))
    pixels = np.concatenate([image.reshape(-1) for image in images])
    digest = hashlib.sha256(repr((names, [image.shape for image in images])).encode() + pixels.tobytes())
    form = PixelFormat(images[0].shape[2], str(images[0].dtype), value_range)
    return Domain(names, tuple(image.shape for image in images), pixels, digest=digest.hexdigest(), format=form)
