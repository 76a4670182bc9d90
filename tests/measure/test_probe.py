from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from velogan.measure.probe import TURNS, _step_s


@pytest.mark.parametrize(("once", "repeats", "turns"), [(20.0, 1, 0), (4.0, 1, 2), (0.01, 25, TURNS)])
def test_dear_steps_are_timed_less_often(once: float, repeats: int, turns: int) -> None:
    timed: list[float] = []
    one: Any = SimpleNamespace(once_s=once, repeats=repeats, run=None)
    one.timed = lambda run: timed.append(once) or once
    assert _step_s(one) == once
    assert len(timed) == turns
