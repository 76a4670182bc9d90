"""Failures of a training, found in its log: what was measured, since when, and what to try; and what it gained."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from velogan.files import counted
from velogan.report.facts import is_number

FAILURE = "failure/"
"""Signs of failure have this before their names in the log."""

ENDED = "ended"
"""True in the row of the log with the signs of a run that has come to its end."""

LASTING = 2
"""A sign counts when so many measurements in a row show it; at the end of a run the last one is enough."""

WINNING = 0.05
"""A discriminator has won when its loss is below this share of what it was at the beginning, """

WON_FOR = 10
"""in so many rows of the log: in a short run a row is one step, and discriminators that win soon lose again."""

SCORES = ("validation/feature_distance", "validation/distance")
"""The scores in the log that choose the best checkpoint, the first one where the log has it; less is better."""

NOTHING = "validation/nothing"
"""The same score of the inputs as they are, where the log has it."""

DECAYED = 1.5
"""Translations have become worse when their score is above the best one times this."""

KEPT = 0.5
"""So they have, too, when they are less than this share as much nearer than doing nothing as the best ones, """

NOTICED = 1.1
"""and their score is above the best one times this: runs that hardly change anything differ by chance."""


@dataclass(frozen=True)
class Failure:
    """A failure that lasts: the `value` measured last, `since` so many images."""

    name: str
    what: str
    value: float
    since: int
    hint: str


@dataclass(frozen=True)
class _Kind:
    wrong: Callable[[float], bool]
    what: str
    hint: str


_KINDS: dict[str, _Kind] = {
    "correlation": _Kind(
        lambda value: value < -0.3,
        "colours are inverted: translations are bright where their inputs are dark (correlation {value:.2f}; all is "
        "well if that is how the two kinds of pictures differ)",
        "a new run with another train.seed, generator.output=mask, or a larger weight of identity or deviation",
    ),
    "spread": _Kind(
        lambda value: value < 0.25,
        "translations are nearly all the same (their distances are {value:.0%} of those of inputs or of real pictures)",
        "a lower rate of the discriminators (optimizer.rules D_*:lr=5e-5), augmentation, or a larger weight of cycles",
    ),
    "change": _Kind(
        lambda value: value < 0.01,
        "translations are copies of their inputs (they differ by {value:.1%} of the range of values)",
        "smaller weights of identity, cycles, edges or deviation, or a longer training",
    ),
    "checkerboard": _Kind(
        lambda value: value > 10,
        "translations have a pattern of 2 or 4 pixels ({value:.0f} times as strong as in real pictures)",
        "a longer training, or a resnet with generator.decoder=resize",
    ),
}


def failures(stats: Sequence[Mapping[str, Any]]) -> list[Failure]:
    """Return the failures that the last rows of a log show."""
    names = dict.fromkeys(name for row in stats for name in row)
    signs = (_lasting(stats, name) for name in names if name.startswith(FAILURE))
    won = (_won(stats, name) for name in names if _JUDGES.fullmatch(name))
    found = (*signs, *_in_scores(_decayed, stats), *_in_scores(_useless, stats), *won)
    return [failure for failure in found if failure]


def ended_badly(stats: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last score of a log, of both directions or of one, is so much worse than that of the best checkpoint
    that this should be used."""
    scored = [(*_scored(stats, way), _nothing(stats, way)) for way in _WAYS]
    return any(_worse(points[-1][1], best, nothing) for points, (_, best), nothing in scored if points)


def nearer(stats: Sequence[Mapping[str, Any]]) -> str | None:
    """How much nearer than their inputs the translations of held-out pictures are at the end of a run, in words.

    Of the checkpoint that `ended_badly` leaves. None where the log does not say it, or they are not nearer: then it is
    in `failures`.
    """
    bad, gains = ended_badly(stats), {}
    for way in _WAYS:
        points, (_, best) = _scored(stats, way)
        nothing = _nothing(stats, way)
        if points and nothing and _lasts(stats, _score(stats, way)) == 1:
            gains[way] = round(100 - 100 * (best if bad else points[-1][1]) / nothing)
    if gains.get("", -1) < 0:
        return None
    single = ", ".join(f"{way[1:]} {gain}%" for way, gain in gains.items() if way)
    return f"translations of held-out pictures are {gains['']}% nearer to real ones than their inputs are ({single})"


def _in_scores(
    find: Callable[[Sequence[Mapping[str, Any]], str], Failure | None], stats: Sequence[Mapping[str, Any]]
) -> list[Failure | None]:
    """Return what `find` finds in the score; if that is nothing, in the scores of single directions."""
    both, *single = _WAYS
    return [failure] if (failure := find(stats, both)) else [find(stats, way) for way in single]


def _lasting(stats: Sequence[Mapping[str, Any]], name: str) -> Failure | None:
    sign, _, way = name.removeprefix(FAILURE).rpartition("_")
    kind, points = _KINDS.get(sign), _points(stats, name)
    if kind is None:
        return None
    since = _since(points, kind.wrong, lasting=_lasts(stats, name))
    if since is None:
        return None
    what = f"{way}: {kind.what.format(value=points[-1][1])}"
    return Failure(name, what, points[-1][1], since, kind.hint)


_WAYS = ("", "_a2b", "_b2a")
"""What follows the names of scores: those of both directions, and of one."""


def _score(stats: Sequence[Mapping[str, Any]], way: str = "") -> str:
    """The score that chose, or that of a direction."""
    return next((name for name in SCORES if _points(stats, name)), SCORES[-1]) + way


def _nothing(stats: Sequence[Mapping[str, Any]], way: str) -> float | None:
    return next((row[NOTHING + way] for row in reversed(stats) if is_number(row.get(NOTHING + way))), None)


def _scored(stats: Sequence[Mapping[str, Any]], way: str) -> tuple[list[tuple[int, float]], tuple[int, float]]:
    """The scores of `way`, each with the images seen; and that of the checkpoint which the score chose, (0, 0) where
    there is none."""
    whole, name = _score(stats), _score(stats, way)
    rows = [row for row in stats if is_number(row.get(whole)) and is_number(row.get(name))]
    best = min(rows, key=lambda row: row[whole], default={name: 0.0})
    return _points(rows, name), (int(best.get("images", 0)), best[name])


def _worse(value: float, best: float, nothing: float | None) -> bool:
    if nothing is not None and best < nothing:
        return nothing - value < KEPT * (nothing - best) and value > NOTICED * best
    return value > DECAYED * best


def _useless(stats: Sequence[Mapping[str, Any]], way: str) -> Failure | None:
    """Said at the end alone: at their beginning all translations are worse than nothing."""
    name, nothing = _score(stats, way), _nothing(stats, way)
    points, best = _scored(stats, way)
    if nothing is None or not points or _lasts(stats, name) > 1:
        return None
    images, value = min(best, points[-1], key=lambda point: point[1])
    if value < nothing:
        return None
    what = f"{_of(way)}translations are no nearer to real pictures than the inputs are ({value:.3f}, doing nothing "
    hint = "a longer training, another preset, or a new run with another train.seed"
    return Failure(NOTHING + way, f"{what}{nothing:.3f})", value, images, hint)


def _decayed(stats: Sequence[Mapping[str, Any]], way: str) -> Failure | None:
    name, nothing = _score(stats, way), _nothing(stats, way)
    points, (images, best) = _scored(stats, way)
    since = _since(points, lambda value: _worse(value, best, nothing), lasting=_lasts(stats, name))
    if since is None:
        return None
    value = points[-1][1]
    what = f"{_of(way)}translations have become worse (their distance to real pictures is {value:.3f}, and was "
    hint = "the best checkpoint, which translate takes now, or a new run with another train.seed"
    return Failure(name, f"{what}{best:.3f} at {counted(images, 'image')})", value, since, hint)


def _of(way: str) -> str:
    return f"{way[1:]}: " if way else ""


_JUDGES = re.compile("loss/discriminator/([dp]_)?[ab]")
"""Losses of discriminators: `a` and `b`, or `d_a` of encodings and `p_a` of pictures."""


def _won(stats: Sequence[Mapping[str, Any]], name: str) -> Failure | None:
    points = _points(stats, name)
    if not points or min(value for _, value in points) < 0:  # a loss that may be negative has no such level
        return None
    first = points[0][1]
    since = _since(points, lambda value: value < WINNING * first, lasting=WON_FOR)
    if since is None:
        return None
    role, share = name.rpartition("/")[2].upper(), points[-1][1] / first
    role = role if "_" in role else f"D_{role}"
    what = f"discriminator {role} tells every translation from real pictures (its loss is {share:.0%} of the first)"
    hint = f"a lower rate (optimizer.rules {role}:lr=5e-5), or augmentation (method.augment)"
    return Failure(name, what, points[-1][1], since, hint)


def _lasts(stats: Sequence[Mapping[str, Any]], name: str) -> int:
    """How many measurements of `name` in a row count: at the end of a run the last one does."""
    ended = next((row.get(ENDED) is True for row in reversed(stats) if is_number(row.get(name))), False)
    return 1 if ended else LASTING


def _points(stats: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    return [(int(row.get("images", 0)), row[name]) for row in stats if is_number(row.get(name))]


def _since(points: Sequence[tuple[int, float]], wrong: Callable[[float], bool], *, lasting: int) -> int | None:
    """Images seen where the last measurements began to be wrong, if at least `lasting` are."""
    count = 0
    for _, value in reversed(points):
        if not wrong(value):
            break
        count += 1
    return points[-count][0] if count >= lasting else None
