from __future__ import annotations

import numpy as np
import pytest

from velogan.sweep.verdict import DIFFERS, UNKNOWN, WITHIN, verdicts


def test_settings_far_apart_differ_and_near_ones_do_not() -> None:
    found = verdicts({"far": [9.0, 9.1, 9.2], "best": [1.0, 1.4, 1.2], "near": [1.1, 1.5, 1.15], "once": [1.3]})
    assert list(found) == ["best", "near", "once", "far"]
    assert [row["verdict"] for row in found.values()] == ["best", WITHIN, UNKNOWN, DIFFERS]
    assert (found["far"]["mean"], found["far"]["low"], found["far"]["high"]) == (pytest.approx(9.1), 9.0, 9.2)
    low, high = found["far"]["interval_95"]
    assert low < 7.9 < high


def test_settings_that_are_the_same_seldom_differ() -> None:
    random = np.random.default_rng(0)
    wrong = 0
    for _ in range(100):
        scores = {name: random.normal(size=5).tolist() for name in "ab"}
        wrong += DIFFERS in [row["verdict"] for row in verdicts(scores).values()]
    assert wrong <= 15


def test_a_setting_without_scores_is_left_out() -> None:
    assert list(verdicts({"none": [], "one": [1.0]})) == ["one"]
