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
SEEDS, BOTH = "seeds", "seeds and pictures"

Resampled = Sequence[Sequence[float | None] | None]
"""Of each run: its score over pictures drawn again, the n-th time the same ones in all runs; None where unknown."""


def verdicts(
    scores: Mapping[str, Sequence[float]],
    resampled: Mapping[str, Resampled] | None = None,
    *,
    higher: bool = False,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """By setting, the best first: `mean`, `low`, `high` over its seeds, `difference` of the mean from the best's, its
    `interval_95`, what this is `over`, and the `verdict`. Lower scores are better, or `higher` ones.

    The interval is a bootstrap, 10,000 times: both settings' seeds are drawn again with replacement, and of these runs
    the scores over the same pictures drawn again, where all of them have such. The deviations between seeds are widened
    by the square root of n / (n - 1), as a resample of few values spreads too little.
    """
    sign = -1 if higher else 1
    order = sorted((name for name in scores if scores[name]), key=lambda name: sign * fmean(scores[name]))
    found: dict[str, dict[str, Any]] = {}
    for name in order:
        mine, best = np.asarray(scores[name], float), np.asarray(scores[order[0]], float)
        row: dict[str, Any] = {"mean": mine.mean().item(), "low": mine.min().item(), "high": mine.max().item()}
        row |= {"seeds": len(mine), "difference": (mine.mean() - best.mean()).item()}
        row |= {"interval_95": None, "over": None}
        if name == order[0]:
            row["verdict"] = "best"
        elif min(len(mine), len(best)) < FEWEST:
            row["verdict"] = UNKNOWN
        else:
            random = np.random.default_rng(seed)
            pictures = _deviations([*(resampled or {}).get(name, [None]), *(resampled or {}).get(order[0], [None])])
            if pictures is not None:  # the same pictures for both settings
                pictures = pictures[:, random.integers(0, pictures.shape[1], RESAMPLES)]
            of_mine, of_best = (None, None) if pictures is None else np.split(pictures, [len(mine)])
            apart = _means(mine, of_mine, random) - _means(best, of_best, random)
            low, high = np.quantile(apart, (0.025, 0.975)).tolist()
            row |= {"interval_95": [low, high], "over": SEEDS if pictures is None else BOTH}
            row["verdict"] = WITHIN if low <= 0 <= high else DIFFERS
        found[name] = row
    return found


def _deviations(runs: Resampled) -> np.ndarray | None:
    """What other pictures change in each run's score, `(runs, resamples)`; None if that of a run is not known."""
    if any(run is None for run in runs) or len({len(run) for run in runs if run is not None}) > 1:
        return None
    values = np.asarray(runs, float)
    values = values[:, np.isfinite(values).all(axis=0)]
    return values - values.mean(axis=1, keepdims=True) if values.shape[1] > 1 else None


def _means(values: np.ndarray, pictures: np.ndarray | None, random: np.random.Generator) -> np.ndarray:
    """Means over seeds drawn again, `(RESAMPLES,)`; `pictures` are deviations for each run and resample."""
    count = len(values)
    chosen = random.integers(0, count, (RESAMPLES, count))
    drawn, middle = values[chosen].mean(axis=1), np.full(RESAMPLES, values.mean())
    if pictures is not None:
        drawn = drawn + pictures[chosen, np.arange(RESAMPLES)[:, None]].mean(axis=1)
        middle = middle + pictures.mean(axis=0)
    return middle + (drawn - middle) * (count / (count - 1)) ** 0.5
