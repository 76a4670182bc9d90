from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from velogan.report import scores
from velogan.report.run_data import MAX_POINTS, mean_curves

MakeRun = Callable[..., Path]
MakeScore = Callable[..., dict[str, Any]]


def test_reduces_long_logs_to_means() -> None:
    stats = [{"images": n, "loss": float(n % 2)} for n in range(2 * MAX_POINTS)]
    curves = mean_curves(stats)
    assert len(curves["images"]) == MAX_POINTS
    assert curves["images"][:2] == [0.5, 2.5]
    assert set(curves["loss"]) == {0.5}


def test_missing_values_are_gaps() -> None:
    rows = [
        {"images": 1},
        {"images": 2, "late": 5, "text": "x", "flag": True},
        {"images": 3, "late": float("nan")},
    ]
    assert mean_curves(rows) == {"images": [1, 2, 3], "late": [None, 5, None]}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("psnr_object_db", 21.34, "21.3 dB"),
        ("lite1_share_class_340", 0.4249, "42.5 %"),
        ("ssim_object", 0.68, "0.680"),
        ("lite1_kid", 0.0279, "0.0279"),
        ("lite1_kid", None, "unknown"),
    ],
)
def test_formats_values_with_units(name: str, value: float | None, text: str, score: MakeScore) -> None:
    assert scores.format_value(score(name), value) == text


def test_bars_of_a_metric_share_a_scale_with_the_best_on_the_right(score: MakeScore) -> None:
    distance = score("lite1_kid", 0.02, real=0.001, baseline=0.15, better="lower")
    bar = scores.place_on_bar(distance, [distance])
    assert 0 <= (bar.baseline or 0) < bar.value < (bar.real or 0) <= 1
    assert scores.improvement(distance) == pytest.approx(0.13)
    share = score("lite1_share_class_340", 0.4, real=0.9, baseline=0.0)
    assert scores.place_on_bar(share, [share]) == scores.Bar(value=0.4, baseline=0.0, real=0.9)
    both = [score("lite1_fid", value, baseline=None) for value in (10.0, 20.0)]
    low, high = (scores.place_on_bar(fid, both).value for fid in both)
    assert high == pytest.approx(2 * low)
