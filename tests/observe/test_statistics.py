from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from velogan.observe.statistics import Stats

FIGURES = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20)


@given(a=FIGURES, b=FIGURES)
def test_a_tick_is_the_mean_of_each_name(a: list[float], b: list[float]) -> None:
    stats = Stats()
    for value in a:
        stats.on_step_end({"a": torch.tensor(value)})
    for value in b:
        stats.on_step_end({"b": torch.tensor([value], requires_grad=True)})
    means = stats.tick()
    assert means == pytest.approx({"a": math.fsum(a) / len(a), "b": math.fsum(b) / len(b)}, rel=1e-9, abs=1e-9)


def test_copies_values_when_added() -> None:
    stats, buffer = Stats(), torch.tensor(1.0)
    stats.on_step_end({"a": buffer})
    buffer.fill_(3.0)
    stats.on_step_end({"a": buffer})
    assert stats.tick() == {"a": 2.0}


def test_sums_many_bfloat16_values_exactly() -> None:
    stats, value = Stats(), torch.tensor(0.1, dtype=torch.bfloat16)
    for _ in range(5000):
        stats.on_step_end({"a": value})
    assert stats.tick()["a"] == pytest.approx(value.item(), rel=1e-9)


def test_nan_affects_one_tick_only() -> None:
    stats = Stats()
    for value in (math.nan, 1.0):
        stats.on_step_end({"a": torch.tensor(value)})
        assert stats.tick() == pytest.approx({"a": value}, nan_ok=True)
