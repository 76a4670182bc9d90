"""Compare the settings of a sweep with the best one: whether the difference exceeds the spread of seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

RESAMPLES = 10_000
MIN_SEEDS = 2
"""Minimum number of seeds of each setting for a comparison."""

DIFFERS, WITHIN = "differs", "within the spread of seeds"
UNKNOWN = "unknown: one seed"
SEEDS, BOTH = "seeds", "seeds and images"

Resampled = Sequence[Sequence[float | None] | None]
"""The scores of each run on resampled images; None if unknown. The n-th resample is the same in all runs."""


def compare_settings(
    scores: Mapping[str, Sequence[float]],
    resampled: Mapping[str, Resampled] | None = None,
    *,
    higher_is_better: bool = False,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Compare each setting with the best one; return rows by setting, the best first.

    Keys: `mean`, `low` and `high` over `seeds` runs; `difference` of the mean from the best mean; `interval_95` of the
    difference, and what was resampled for it (`over`); `verdict`. Lower scores are better, unless `higher_is_better`.

    The interval is from a bootstrap of 10,000 resamples: the seeds of both settings are resampled, and also the images
    if the resampled scores of all runs are known. The deviations between seeds are scaled by the square root of
    n / (n - 1), because resamples of few values vary too little.
    """
    sign = -1 if higher_is_better else 1
    order = sorted((name for name in scores if scores[name]), key=lambda name: sign * fmean(scores[name]))
    result: dict[str, dict[str, Any]] = {}
    for name in order:
        own, best = np.asarray(scores[name], float), np.asarray(scores[order[0]], float)
        row: dict[str, Any] = {"mean": own.mean().item(), "low": own.min().item(), "high": own.max().item()}
        difference = (own.mean() - best.mean()).item()
        row |= {"seeds": len(own), "difference": difference, "interval_95": None, "over": None}
        if name == order[0]:
            row["verdict"] = "best"
        elif min(len(own), len(best)) < MIN_SEEDS:
            row["verdict"] = UNKNOWN
        else:
            random = np.random.default_rng(seed)
            images = _deviations([*(resampled or {}).get(name, [None]), *(resampled or {}).get(order[0], [None])])
            if images is not None:  # both settings get the same resampled images
                images = images[:, random.integers(0, images.shape[1], RESAMPLES)]
            own_images, best_images = (None, None) if images is None else np.split(images, [len(own)])
            differences = _means(own, own_images, random) - _means(best, best_images, random)
            low, high = np.quantile(differences, (0.025, 0.975)).tolist()
            row |= {"interval_95": [low, high], "over": SEEDS if images is None else BOTH}
            row["verdict"] = WITHIN if low <= 0 <= high else DIFFERS
        result[name] = row
    return result


def _deviations(runs: Resampled) -> np.ndarray | None:
    """Return how much each resample of images changes each run's score, `(runs, resamples)`; None if one is unknown."""
    if any(run is None for run in runs) or len({len(run) for run in runs if run is not None}) > 1:
        return None
    values = np.asarray(runs, float)
    values = values[:, np.isfinite(values).all(axis=0)]
    return values - values.mean(axis=1, keepdims=True) if values.shape[1] > 1 else None


def _means(values: np.ndarray, images: np.ndarray | None, random: np.random.Generator) -> np.ndarray:
    """Return means over resampled seeds, `(RESAMPLES,)`; `images`: results of `_deviations`, `(runs, RESAMPLES)`."""
    count = len(values)
    chosen = random.integers(0, count, (RESAMPLES, count))
    means, center = values[chosen].mean(axis=1), np.full(RESAMPLES, values.mean())
    if images is not None:
        means = means + images[chosen, np.arange(RESAMPLES)[:, None]].mean(axis=1)
        center = center + images.mean(axis=0)
    return center + (means - center) * (count / (count - 1)) ** 0.5
