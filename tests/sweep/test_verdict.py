from __future__ import annotations

import numpy as np
import pytest

from velogan.sweep.verdict import BOTH, DIFFERS, SEEDS, UNKNOWN, WITHIN, compare_settings


def test_settings_far_apart_differ_and_near_ones_do_not() -> None:
    rows = compare_settings({"far": [9.0, 9.1, 9.2], "best": [1.0, 1.4, 1.2], "near": [1.1, 1.5, 1.15], "once": [1.3]})
    assert list(rows) == ["best", "near", "once", "far"]
    assert [row["verdict"] for row in rows.values()] == ["best", WITHIN, UNKNOWN, DIFFERS]
    assert (rows["far"]["mean"], rows["far"]["low"], rows["far"]["high"]) == (pytest.approx(9.1), 9.0, 9.2)
    low, high = rows["far"]["interval_95"]
    assert low < 7.9 < high


def test_equal_settings_seldom_differ() -> None:
    random = np.random.default_rng(0)
    wrong = 0
    for _ in range(100):
        scores = {name: random.normal(size=5).tolist() for name in "ab"}
        wrong += DIFFERS in [row["verdict"] for row in compare_settings(scores).values()]
    assert wrong <= 15


def test_images_widen_the_interval_unless_they_move_both_settings_alike() -> None:
    random = np.random.default_rng(0)
    scores = {"best": [1.0, 1.02, 1.01], "other": [1.1, 1.12, 1.11]}
    assert compare_settings(scores)["other"]["verdict"] == DIFFERS
    assert compare_settings(scores)["other"]["over"] == SEEDS

    def around(name: str, moves: np.ndarray) -> list[list[float | None]]:
        return [[float(score + move) for move in moves] for score in scores[name]]

    common, own = random.normal(0, 0.2, (2, 400))
    alike = compare_settings(scores, {name: around(name, common) for name in scores})["other"]
    apart = compare_settings(scores, {"best": around("best", common), "other": around("other", own)})["other"]
    assert (alike["verdict"], alike["over"]) == (DIFFERS, BOTH)
    assert (apart["verdict"], apart["over"]) == (WITHIN, BOTH)
    low, high = apart["interval_95"]
    assert high - low == pytest.approx(2 * 1.96 * 0.2 * 2**0.5, rel=0.15)  # the standard deviation of a difference


def test_the_highest_comes_first_if_higher_is_better() -> None:
    rows = compare_settings({"low": [1.0, 1.01], "high": [3.0, 3.01]}, higher_is_better=True)
    assert list(rows) == ["high", "low"]
    assert rows["low"]["verdict"] == DIFFERS
    assert rows["low"]["difference"] == pytest.approx(-2.0)
