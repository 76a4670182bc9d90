"""What a range of values makes of a domain: whether networks would see it almost black, or mostly clipped."""

from __future__ import annotations

import numpy as np

from velogan.data.sets.cache import Domain

_LOOKED_AT = 16
"""Pictures of a domain."""
_DARK = 0.25
"""Almost black: all but a thousandth of the values lie in the lowest quarter of the range."""
_CLIPPED = 0.75
"""Mostly clipped: more of the values lie outside the range. Windows of CT leave out about half, which is air."""


def tone(domain: Domain, flag: str) -> str:
    """A line for a domain that is almost black or mostly clipped; else nothing. `flag` sets its range.

    Some pictures are looked at, evenly spread. Those of 8 bits without a declared range are as people see them.
    """
    form = domain.format
    if not len(domain) or form.own_scale or (form.dtype == "uint8" and form.range is None):
        return ""
    numbers = np.unique(np.linspace(0, len(domain) - 1, _LOOKED_AT).astype(int))
    values = np.concatenate([domain.image(int(number)).reshape(-1) for number in numbers])
    low, high = form.range or (0, float(np.iinfo(form.dtype).max))
    mend = f"{flag} {values.min():g} {values.max():g} would show all of them"
    outside = float(((values < low) | (values > high)).mean())
    if outside > _CLIPPED:
        return f"{outside:.0%} of the values lie outside {low:g} to {high:g} and are clipped: {mend}"
    if np.quantile(values, 0.999) < low + _DARK * (high - low):
        return f"almost black: values are {values.min():g} to {values.max():g}, of {low:g} to {high:g}: {mend}"
    return ""
