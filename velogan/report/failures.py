"""Find failures of a training in its log, with what to try against each, and describe what the training improved."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from velogan.files import pluralize
from velogan.report.run_data import is_number
from velogan.report.scores import MIN_RETRIEVAL

FAILURE = "failure/"
"""Prefix of the signs of failure in the log."""

ENDED = "ended"
"""Key of the log that is true in the row with the signs of failure of a finished run."""

MIN_MEASUREMENTS = 2
"""A sign counts if this many measurements in a row show it; at the end of a run the last one is enough."""

WON_LOSS_FRACTION = 0.05
"""A discriminator has won if its loss is below this fraction of its first value ..."""

WON_MIN_ROWS = 10
"""... in this many rows of the log: in a short run a row is one step, and a discriminator may win for a moment."""

SCORES = ("validation/feature_distance", "validation/distance")
"""Validation scores that choose the best checkpoint: the first one that the log has. Lower is better."""

BASELINE = "validation/unchanged_input"
"""The same score of the unchanged inputs, if the log has it."""

WORSE_FACTOR = 1.5
"""Translations have become worse if their score is above the best one times this factor ..."""

MIN_GAIN_FRACTION = 0.5
"""... or if they improve on the unchanged inputs by less than this fraction of the best improvement,"""

NOTICEABLE_FACTOR = 1.1
"""and their score is above the best one times this factor: scores of runs that hardly change anything are noise."""


@dataclass(frozen=True)
class Failure:
    """A failure that lasts.

    name: the key in the log
    description: what is wrong, with the value
    value: the last measurement
    since: number of images seen when it began
    hint: what to try
    """

    name: str
    description: str
    value: float
    since: int
    hint: str


@dataclass(frozen=True)
class _Sign:
    is_wrong: Callable[[float], bool]
    description: str
    hint: str


_SIGNS: dict[str, _Sign] = {
    "correlation": _Sign(
        lambda value: value < -0.3,
        "colours are inverted: translations are bright where their inputs are dark (correlation {value:.2f}; fine "
        "if the two domains differ in this way)",
        "a new run with another train.seed, generator.output=mask, or a larger weight of identity or deviation",
    ),
    "spread": _Sign(
        lambda value: value < 0.25,
        "translations are nearly all the same (their distances are {value:.0%} of those of inputs or of real images)",
        "a lower rate of the discriminators (optimizer.rules D_*:lr=5e-5), augmentation, or a larger cycle weight",
    ),
    "retrieval": _Sign(
        lambda value: value < MIN_RETRIEVAL,
        "translations are unrelated to their inputs (more like their own input than like another in {value:.0%} of "
        "comparisons; chance: 50%)",
        "a larger weight of cycle or edges, or a lower rate of the discriminators (optimizer.rules D_*:lr=5e-5)",
    ),
    "change": _Sign(
        lambda value: value < 0.01,
        "translations are copies of their inputs (they differ by {value:.1%} of the value range)",
        "smaller weights of identity, cycle, edges or deviation, or a longer training",
    ),
    "checkerboard": _Sign(
        lambda value: value > 10,
        "translations have a pattern of 2 or 4 pixels ({value:.0f} times as strong as in real images)",
        "a longer training, or a resnet with generator.decoder=resize",
    ),
}


def find_failures(stats: Sequence[Mapping[str, Any]]) -> list[Failure]:
    """Return the failures that the last rows of a log show: signs, bad scores and discriminators that won."""
    names = dict.fromkeys(name for row in stats for name in row)
    signs = (_check_sign(stats, name) for name in names if name.startswith(FAILURE))
    won = (_check_discriminator(stats, name) for name in names if _DISCRIMINATOR_LOSS.fullmatch(name))
    results = (*signs, *_check_scores(_check_decay, stats), *_check_scores(_check_baseline, stats), *won)
    return [failure for failure in results if failure]


def final_checkpoint_is_worse(stats: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the last score is so much worse than the best checkpoint's that the best one should be used.

    One direction that is worse is enough.
    """
    scored = [(*_score_history(stats, suffix), _baseline(stats, suffix)) for suffix in _SUFFIXES]
    return any(_is_worse(points[-1][1], best, baseline) for points, (_, best), baseline in scored if points)


def describe_improvement(stats: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a sentence: how much closer held-out translations are to real images than their inputs, and `retrieval`.

    The checkpoint is the last one, or the best one if `final_checkpoint_is_worse`. None if the log does not have the
    scores, or if the translations are not closer, which `find_failures` reports.
    """
    use_best, gains, retrieved = final_checkpoint_is_worse(stats), {}, {}
    for suffix in _SUFFIXES:
        points, (best_images, best) = _score_history(stats, suffix)
        baseline = _baseline(stats, suffix)
        if points and baseline and _required_measurements(stats, _score_name(stats, suffix)) == 1:
            gains[suffix] = round(100 - 100 * (best if use_best else points[-1][1]) / baseline)
            shares = dict(_measurements(stats, f"{FAILURE}retrieval{suffix}"))
            retrieved[suffix] = shares.get(best_images if use_best else points[-1][0])
    if gains.get("", -1) < 0:
        return None
    single = ", ".join(f"{suffix[1:]} {gain}%" for suffix, gain in gains.items() if suffix)
    shares = ", ".join(f"{suffix[1:]} {share:.0%}" for suffix, share in retrieved.items() if share is not None)
    return (
        f"translations of held-out images are {gains['']}% closer to real ones than their inputs are ({single})"
        f"{f'; more like their own input than like another in {shares} of comparisons' if shares else ''}"
    )


def _check_scores(
    check: Callable[[Sequence[Mapping[str, Any]], str], Failure | None], stats: Sequence[Mapping[str, Any]]
) -> list[Failure | None]:
    """Return the result of `check` for the score of both directions; if it passes, those for each direction."""
    both, *single = _SUFFIXES
    return [failure] if (failure := check(stats, both)) else [check(stats, suffix) for suffix in single]


def _check_sign(stats: Sequence[Mapping[str, Any]], name: str) -> Failure | None:
    key, _, direction = name.removeprefix(FAILURE).rpartition("_")
    sign, points = _SIGNS.get(key), _measurements(stats, name)
    if sign is None:
        return None
    since = _wrong_since(points, sign.is_wrong, min_count=_required_measurements(stats, name))
    if since is None:
        return None
    description = f"{direction}: {sign.description.format(value=points[-1][1])}"
    return Failure(name, description, points[-1][1], since, sign.hint)


_SUFFIXES = ("", "_a2b", "_b2a")
"""Suffixes of the names of scores: of both directions together, and of each."""


def _score_name(stats: Sequence[Mapping[str, Any]], suffix: str = "") -> str:
    """Return the name of the score that chooses the best checkpoint, with the suffix of a direction."""
    return next((name for name in SCORES if _measurements(stats, name)), SCORES[-1]) + suffix


def _baseline(stats: Sequence[Mapping[str, Any]], suffix: str) -> float | None:
    return next((row[BASELINE + suffix] for row in reversed(stats) if is_number(row.get(BASELINE + suffix))), None)


def _score_history(
    stats: Sequence[Mapping[str, Any]], suffix: str
) -> tuple[list[tuple[int, float]], tuple[int, float]]:
    """Return all (images seen, score) of a direction, and that of the best checkpoint; (0, 0) if there is none."""
    choosing, name = _score_name(stats), _score_name(stats, suffix)
    rows = [row for row in stats if is_number(row.get(choosing)) and is_number(row.get(name))]
    best = min(rows, key=lambda row: row[choosing], default={name: 0.0})
    return _measurements(rows, name), (int(best.get("images", 0)), best[name])


def _is_worse(value: float, best: float, baseline: float | None) -> bool:
    if baseline is not None and best < baseline:
        return baseline - value < MIN_GAIN_FRACTION * (baseline - best) and value > NOTICEABLE_FACTOR * best
    return value > WORSE_FACTOR * best


def _check_baseline(stats: Sequence[Mapping[str, Any]], suffix: str) -> Failure | None:
    """Check that translations are better than the unchanged inputs; only at the end, since early ones never are."""
    name, baseline = _score_name(stats, suffix), _baseline(stats, suffix)
    points, best = _score_history(stats, suffix)
    if baseline is None or not points or _required_measurements(stats, name) > 1:
        return None
    images, value = min(best, points[-1], key=lambda point: point[1])
    if value < baseline:
        return None
    description = (
        f"{_direction_prefix(suffix)}translations are no closer to real images than the inputs are "
        f"({value:.3f}, unchanged input {baseline:.3f})"
    )
    hint = "a longer training, another preset, or a new run with another train.seed"
    return Failure(BASELINE + suffix, description, value, images, hint)


def _check_decay(stats: Sequence[Mapping[str, Any]], suffix: str) -> Failure | None:
    """Check that the last translations are not worse than those of the best checkpoint."""
    name, baseline = _score_name(stats, suffix), _baseline(stats, suffix)
    points, (images, best) = _score_history(stats, suffix)
    min_count = _required_measurements(stats, name)
    since = _wrong_since(points, lambda value: _is_worse(value, best, baseline), min_count=min_count)
    if since is None:
        return None
    value = points[-1][1]
    description = (
        f"{_direction_prefix(suffix)}translations have become worse (their distance to real images is {value:.3f}, "
        f"and was {best:.3f} at {pluralize(images, 'image')})"
    )
    hint = "the best checkpoint, which translate uses now, or a new run with another train.seed"
    return Failure(name, description, value, since, hint)


def _direction_prefix(suffix: str) -> str:
    return f"{suffix[1:]}: " if suffix else ""


_DISCRIMINATOR_LOSS = re.compile("loss/discriminator/([dp]_)?[ab]")
"""Losses of discriminators: `a` and `b`, or `d_a` of encodings and `p_a` of images."""


def _check_discriminator(stats: Sequence[Mapping[str, Any]], name: str) -> Failure | None:
    points = _measurements(stats, name)
    if not points or min(value for _, value in points) < 0:  # a loss that may be negative has no lowest value
        return None
    first = points[0][1]
    since = _wrong_since(points, lambda value: value < WON_LOSS_FRACTION * first, min_count=WON_MIN_ROWS)
    if since is None:
        return None
    role, fraction = name.rpartition("/")[2].upper(), points[-1][1] / first
    role = role if "_" in role else f"D_{role}"
    description = (
        f"discriminator {role} tells every translation from real images (its loss is {fraction:.0%} of the first)"
    )
    hint = f"a lower rate (optimizer.rules {role}:lr=5e-5), or augmentation (method.augment)"
    return Failure(name, description, points[-1][1], since, hint)


def _required_measurements(stats: Sequence[Mapping[str, Any]], name: str) -> int:
    """Return how many measurements of `name` in a row are needed: one at the end of a run, else MIN_MEASUREMENTS."""
    has_ended = next((row.get(ENDED) is True for row in reversed(stats) if is_number(row.get(name))), False)
    return 1 if has_ended else MIN_MEASUREMENTS


def _measurements(stats: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    return [(int(row.get("images", 0)), row[name]) for row in stats if is_number(row.get(name))]


def _wrong_since(
    points: Sequence[tuple[int, float]], is_wrong: Callable[[float], bool], *, min_count: int
) -> int | None:
    """Return the images seen when the last measurements began to be wrong; None if fewer than `min_count` are."""
    count = 0
    for _, value in reversed(points):
        if not is_wrong(value):
            break
        count += 1
    return points[-count][0] if count >= min_count else None
