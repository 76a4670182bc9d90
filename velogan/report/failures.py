"""Failures of a training, found in its log: what was measured, since when, and what to try."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from velogan.report.facts import is_number

FAILURE = "failure/"
"""Signs of failure have this before their names in the log."""

LASTING = 2
"""A sign counts when so many measurements in a row show it."""

WINNING = 0.05
"""A discriminator has won when its loss is below this share of what it was at the beginning."""


@dataclass(frozen=True)
class Failure:
    """A failure that lasts: `sign` with the `value` measured last, `since` so many images."""

    name: str
    what: str
    value: float
    since: int
    mend: str


@dataclass(frozen=True)
class _Kind:
    wrong: Callable[[float], bool]
    what: str
    mend: str


_KINDS: dict[str, _Kind] = {
    "correlation": _Kind(
        lambda value: value < -0.3,
        "colours are inverted: translations are bright where their inputs are dark (correlation {value:.2f})",
        "begin again with another train.seed, a larger method.identity_a, or generator.output=mask; if that is how the "
        "two kinds of pictures differ, all is well",
    ),
    "spread": _Kind(
        lambda value: value < 0.25,
        "translations are nearly all the same (their distances are {value:.0%} of those of real pictures)",
        "lower the discriminators' rate (optimizer.rules D_*:lr=1e-4), use method.augment, or raise method.cycle_a",
    ),
    "change": _Kind(
        lambda value: value < 0.01,
        "translations are copies of their inputs (they differ by {value:.1%} of the range of values)",
        "lower method.identity_a and method.cycle_a, or train longer",
    ),
    "checkerboard": _Kind(
        lambda value: value > 10,
        "translations have a pattern of 2 or 4 pixels ({value:.0f} times as strong as in real pictures)",
        "train longer, or try another generator.decoder",
    ),
}


def failures(stats: Sequence[Mapping[str, Any]]) -> list[Failure]:
    """The failures that the last rows of a log show, oldest row first."""
    names = dict.fromkeys(name for row in stats for name in row)
    signs = [_lasting(stats, name) for name in names if name.startswith(FAILURE)]
    return [one for one in (*signs, *(_won(stats, name) for name in names if _judges(name))) if one]


def _lasting(stats: Sequence[Mapping[str, Any]], name: str) -> Failure | None:
    sign, _, way = name.removeprefix(FAILURE).rpartition("_")
    kind, points = _KINDS.get(sign), _points(stats, name)
    if kind is None or not points:
        return None
    since = _since(points, kind.wrong)
    if since is None:
        return None
    what = f"{way}: {kind.what.format(value=points[-1][1])}"
    return Failure(name, what, points[-1][1], since, kind.mend)


def _judges(name: str) -> bool:
    return name.startswith("loss/discriminator/") and not name.endswith("/total")


def _won(stats: Sequence[Mapping[str, Any]], name: str) -> Failure | None:
    points = _points(stats, name)
    if not points or min(value for _, value in points) < 0:  # a loss that may be negative has no such level
        return None
    first = points[0][1]
    since = _since(points, lambda value: value < WINNING * first)
    if since is None:
        return None
    which, share = name.rpartition("/")[2].upper(), points[-1][1] / first
    what = f"discriminator {which} tells every translation from real pictures (its loss is {share:.0%} of the first)"
    mend = "lower its rate (optimizer.rules D_*:lr=1e-4), use method.augment or discriminator.network=projected"
    return Failure(name, what, points[-1][1], since, mend)


def _points(stats: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    return [(int(row.get("images", 0)), row[name]) for row in stats if is_number(row.get(name))]


def _since(points: Sequence[tuple[int, float]], wrong: Callable[[float], bool]) -> int | None:
    """Images seen where the last measurements began to be wrong, if at least `LASTING` are."""
    lasting = 0
    for _, value in reversed(points):
        if not wrong(value):
            break
        lasting += 1
    return points[-lasting][0] if lasting >= LASTING else None
