"""Whether a setting differs from the best one by more than another seed does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

RESAMPLES = 10_000
FEWEST = 2
"""Seeds of each setting, below which nothing can be said."""

DIFFERS, WITHIN, UNKNOWN = "differs", "within what another seed does", "one seed: nothing can be said"


def verdicts(scores: Mapping[str, Sequence[float]], *, seed: int = 0) -> dict[str, dict[str, Any]]:
    """By setting, the best first: `mean`, `low`, `high` over its seeds, `difference` of the mean from the best's, its
    `interval_95`, and the `verdict`. Lower scores are better.

    The interval is a bootstrap over seeds: both settings' seeds are drawn again with replacement, 10,000 times, and the
    deviations are widened by the square root of n / (n - 1), as a resample of few values spreads too little.
    """
    order = sorted((name for name in scores if scores[name]), key=lambda name: fmean(scores[name]))
    found: dict[str, dict[str, Any]] = {}
    for name in order:
        mine, best = np.asarray(scores[name], float), np.asarray(scores[order[0]], float)
        row: dict[str, Any] = {"mean": mine.mean().item(), "low": mine.min().item(), "high": mine.max().item()}
        row |= {"seeds": len(mine), "difference": (mine.mean() - best.mean()).item(), "interval_95": None}
        if name == order[0]:
            row["verdict"] = "best"
        elif min(len(mine), len(best)) < FEWEST:
            row["verdict"] = UNKNOWN
        else:
            random = np.random.default_rng(seed)
            apart = _means(mine, random) - _means(best, random)
            low, high = np.quantile(apart, (0.025, 0.975)).tolist()
            row |= {"interval_95": [low, high], "verdict": DIFFERS if low > 0 else WITHIN}
        found[name] = row
    return found


def _means(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    count = len(values)
    drawn = values[random.integers(0, count, (RESAMPLES, count))].mean(axis=1)
    return values.mean() + (drawn - values.mean()) * (count / (count - 1)) ** 0.5
