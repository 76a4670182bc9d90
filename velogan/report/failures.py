"""Find failures of a run in its log, each with a hint on what to try, and describe what the run improved."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from velogan.files import pluralize
from velogan.report.run_data import is_number
from velogan.report.scores import FEATURE_SCORE, IDENTITY_SCORE, MIN_RETRIEVAL, SCORE

FAILURE = "failure/"  # prefix of the names of failure signs in the log
ENDED = "ended"  # true in the log row with the failure signs of a finished run
MIN_MEASUREMENTS = 2  # number of consecutive bad measurements that make a failure; at the end of a run one is enough

WON_LOSS_FRACTION, WON_MIN_ROWS = 0.05, 10
"""A discriminator has won if its loss is below WON_LOSS_FRACTION of its first value in the last WON_MIN_ROWS log rows.
Fewer rows are not enough: in a short run each is a single step, and a discriminator may win for a moment."""

_SUFFIXES = ("", "_a2b", "_b2a")  # of score names: both directions together, then each

WORSE_FACTOR, MIN_GAIN_FRACTION = 1.5, 0.5
NOTICEABLE_FACTOR = 1.1
"""Translations have become worse if their score is above WORSE_FACTOR times the best score. If the best score is below
that of the unchanged inputs, they have become worse if less than MIN_GAIN_FRACTION of this gain is left and their
score is above NOTICEABLE_FACTOR times the best score, since smaller differences are noise."""

_DISCRIMINATOR_LOSS = re.compile("loss/discriminator/(d_)?[ab]")  # d_a: of a discriminator of encodings

LogRows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Failure:
    """A lasting failure: its `name` and last `value` in the log, images seen when it began (`since`), what to try."""

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
        "smaller weights of identity, cycle, edges or deviation, or a longer run",
    ),
    "checkerboard": _Sign(
        lambda value: value > 10,
        "translations have a pattern of 2 or 4 pixels ({value:.0f} times as strong as in real images)",
        "a longer run, or a resnet with generator.decoder=resize",
    ),
}


class _Distances:
    """The logged distances of translations to real images, for both directions together or for one."""

    def __init__(self, stats: LogRows, suffix: str):
        metric = FEATURE_SCORE if _measurements(stats, FEATURE_SCORE) else SCORE
        self.name, self.suffix = metric + suffix, suffix
        rows = [row for row in stats if is_number(row.get(metric)) and is_number(row.get(self.name))]
        self.points = _measurements(rows, self.name)
        best = min(rows, key=lambda row: row[metric], default={})
        self.best_images, self.best = int(best.get("images", 0)), best.get(self.name, 0.0)
        self.baseline = next((value for _, value in reversed(_measurements(stats, IDENTITY_SCORE + suffix))), None)
        self.has_ended = _has_ended(stats, self.name)

    def is_worse(self, value: float) -> bool:
        """Return whether the distance `value` is much worse than that of the best checkpoint."""
        if self.baseline is not None and self.best < self.baseline:
            gain, best_gain = self.baseline - value, self.baseline - self.best
            return gain < MIN_GAIN_FRACTION * best_gain and value > NOTICEABLE_FACTOR * self.best
        return value > WORSE_FACTOR * self.best


def find_failures(stats: LogRows) -> list[Failure]:
    """Return the failures in the last rows of a log: signs of failure, bad scores and discriminators that won."""
    names = dict.fromkeys(name for row in stats for name in row)
    results = [_check_sign(stats, name) for name in names if name.startswith(FAILURE)]
    both, *single = (_Distances(stats, suffix) for suffix in _SUFFIXES)
    for check in (_check_decay, _check_baseline):
        results += [failure] if (failure := check(both)) else map(check, single)
    results += [_check_discriminator(stats, name) for name in names if _DISCRIMINATOR_LOSS.fullmatch(name)]
    return [failure for failure in results if failure]


def final_checkpoint_is_worse(stats: LogRows) -> bool:
    """Return whether the last checkpoint is much worse than the best one, in at least one direction."""
    scores = (_Distances(stats, suffix) for suffix in _SUFFIXES)
    return any(distances.is_worse(distances.points[-1][1]) for distances in scores if distances.points)


def describe_improvement(stats: LogRows) -> str | None:
    """Return a sentence on how much closer translations of held-out images are to real ones than their inputs are.

    It describes the last checkpoint, or the best one if `final_checkpoint_is_worse`, and includes `retrieval` if known.
    None if the log has no scores from the end of the run, or if translations are not closer (see `find_failures`).
    """
    use_best, gains = final_checkpoint_is_worse(stats), dict[str, int]()
    shares = list[str]()
    for suffix in _SUFFIXES:
        distances = _Distances(stats, suffix)
        if not distances.points or not distances.baseline or not distances.has_ended:
            continue
        images, value = (distances.best_images, distances.best) if use_best else distances.points[-1]
        gains[suffix[1:]] = round(100 - 100 * value / distances.baseline)
        share = dict(_measurements(stats, f"{FAILURE}retrieval{suffix}")).get(images)
        shares += [] if share is None else [f"{suffix[1:]} {share:.0%}"]
    both = gains.pop("", -1)
    if both < 0:
        return None
    retrieval = f"; more like their own input than like another in {', '.join(shares)} of comparisons" if shares else ""
    single = ", ".join(f"{direction} {gain}%" for direction, gain in gains.items())
    return (
        f"translations of held-out images are {both}% closer to real ones than their inputs are ({single}){retrieval}"
    )


def _check_sign(stats: LogRows, name: str) -> Failure | None:
    key, _, direction = name.removeprefix(FAILURE).rpartition("_")
    if key not in _SIGNS:
        return None
    min_count = 1 if _has_ended(stats, name) else MIN_MEASUREMENTS
    return _check_lasting(name, _measurements(stats, name), _SIGNS[key], direction=direction, min_count=min_count)


def _check_baseline(distances: _Distances) -> Failure | None:
    """Return a failure if translations at the end of a run, also the best ones, are no better than unchanged inputs."""
    baseline = distances.baseline
    if baseline is None or not distances.points or not distances.has_ended:
        return None  # early translations are never better
    best, last = (distances.best_images, distances.best), distances.points[-1]
    sign = _Sign(
        lambda value: value >= baseline,
        "translations are no closer to real images than the inputs are "
        f"({{value:.3f}}, unchanged input {baseline:.3f})",
        "a longer run, another preset, or a new run with another train.seed",
    )
    points = [min(best, last, key=lambda point: point[1])]
    return _check_lasting(IDENTITY_SCORE + distances.suffix, points, sign, direction=distances.suffix[1:], min_count=1)


def _check_decay(distances: _Distances) -> Failure | None:
    """Return a failure if the last translations are much worse than those of the best checkpoint."""
    sign = _Sign(
        distances.is_worse,
        "translations have become worse (their distance to real images is {value:.3f}, "
        f"and was {distances.best:.3f} at {pluralize(distances.best_images, 'image')})",
        "the best checkpoint, which translate uses now, or a new run with another train.seed",
    )
    min_count = 1 if distances.has_ended else MIN_MEASUREMENTS
    direction = distances.suffix[1:]
    return _check_lasting(distances.name, distances.points, sign, direction=direction, min_count=min_count)


def _check_discriminator(stats: LogRows, name: str) -> Failure | None:
    points = _measurements(stats, name)
    if not points or min(value for _, value in points) < 0:  # a loss that may be negative has no lowest value
        return None
    first, role = points[0][1], name.rpartition("/")[2].upper()
    sees_images = "_" not in role
    role = f"D_{role}" if sees_images else role
    sign = _Sign(
        lambda value: value < WON_LOSS_FRACTION * first,
        f"discriminator {role} tells every translation from real images "
        f"(its loss is {points[-1][1] / (first or 1):.0%} of the first)",
        f"a lower rate (optimizer.rules {role}:lr=5e-5){', or augmentation (method.augment)' * sees_images}",
    )
    return _check_lasting(name, points, sign, min_count=WON_MIN_ROWS)


def _check_lasting(
    name: str, points: Sequence[tuple[int, float]], sign: _Sign, *, direction: str = "", min_count: int
) -> Failure | None:
    """Return a failure if at least the last `min_count` of `points`, `(images seen, value)`, are wrong."""
    wrong = list(takewhile(lambda point: sign.is_wrong(point[1]), reversed(points)))
    if len(wrong) < min_count:
        return None
    (_, value), (since, _) = wrong[0], wrong[-1]
    prefix = f"{direction}: " if direction else ""
    return Failure(name, prefix + sign.description.format(value=value), value, since, sign.hint)


def _has_ended(stats: LogRows, name: str) -> bool:
    """Return whether the last measurement of `name` was made at the end of the run."""
    return next((row.get(ENDED) is True for row in reversed(stats) if is_number(row.get(name))), False)


def _measurements(stats: LogRows, name: str) -> list[tuple[int, float]]:
    return [(int(row.get("images", 0)), row[name]) for row in stats if is_number(row.get(name))]
