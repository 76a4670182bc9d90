"""What training and `velogan data check` both report of a domain before its images are seen."""

from __future__ import annotations

import numpy as np

from velogan.data.pictures.values import PixelFormat
from velogan.data.sets.slices import Slices
from velogan.data.sets.sources import ImageSource, describe_skipped_files
from velogan.types import Letter

_DARK = 0.25
"""Almost black: all but a thousandth of the values lie in the lowest quarter of the range."""
_CLIPPED = 0.75
"""Mostly clipped: more of the values lie outside the range. Windows of CT leave out about half, which is air."""


def remarks(source: ImageSource, form: PixelFormat, values: np.ndarray, *, letter: Letter) -> list[str]:
    """List, a line each, what volumes were found or which files are no pictures, and whether the range is wrong.

    `form`: of the images of domain `letter`; `values`: some of their pixels.
    """
    found = source.note if isinstance(source, Slices) else describe_skipped_files(source.directory, scans=False)
    return [line for line in (found, range_warning(form, values, letter=letter)) if line]


def range_warning(form: PixelFormat, values: np.ndarray, *, letter: Letter) -> str:
    """Return a line if networks would see images almost black or mostly clipped; else nothing.

    Images of 8 bits without a declared range are as people see them; floats without one are refused elsewhere.
    """
    plain = form.range is None and form.dtype in ("uint8", "float32")
    if not values.size or form.own_scale or plain:
        return ""
    low, high = form.range or (0, float(np.iinfo(form.dtype).max))
    hint = f"--data.range-{letter.lower()} {values.min():g} {values.max():g} would show all of them"
    outside = float(((values < low) | (values > high)).mean())
    if outside > _CLIPPED:
        return f"{outside:.0%} of the values lie outside {low:g} to {high:g} and are clipped: {hint}"
    if np.quantile(values, 0.999) < low + _DARK * (high - low):
        return f"almost black: values are {values.min():g} to {values.max():g}, of {low:g} to {high:g}: {hint}"
    return ""
