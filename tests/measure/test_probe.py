from __future__ import annotations

import pytest

from velogan.measure.probe import MAX_TIMINGS, median_step_seconds


@pytest.mark.parametrize(("once", "calls"), [(20.0, [1]), (4.0, [1, 1, 1]), (0.01, [1, *MAX_TIMINGS * [25]])])
def test_expensive_steps_are_timed_less_often(once: float, calls: list[int]) -> None:
    repeats: list[int] = []

    def timed(count: int) -> float:
        repeats.append(count)
        return once * count

    assert median_step_seconds(timed) == pytest.approx(once)
    assert repeats == calls
