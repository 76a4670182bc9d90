"""What one look at a step sees."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from benchmarks.bench.glance import BETWEEN, glance, rise

CPU = torch.device("cpu")


def test_memory_is_the_most_that_is_alive_at_once():
    before = torch.empty(1000, dtype=torch.uint8)
    kept = []

    def run() -> None:
        nonlocal before
        del before  # was there before: giving it back is not seen
        first = torch.empty(4_000_000, dtype=torch.uint8)
        del first
        second = torch.empty(3_000_000, dtype=torch.uint8)
        third = torch.empty(2_000_000, dtype=torch.uint8)
        del second
        kept.append(third)

    assert glance(run, device=CPU).rise == 5_000_000


def test_what_was_there_before_is_not_given_back():
    taken = [(1, 100), (2, 50), (1, -100), (3, -4000), (4, 60), (1, 10), (1, -10), (1, -100)]
    assert rise(taken) == 150


def test_time_goes_to_groups_and_adds_up():
    weight = torch.randn(64, 64, 3, 3)
    image = torch.randn(1, 64, 48, 48)

    def run() -> None:
        for _ in range(5):
            F.conv2d(image, weight)
        image.clone()

    seen = glance(run, device=CPU)
    assert seen.seconds["convolution"] > seen.seconds["copies and fills"] > 0
    assert seen.seconds["norm, activation, padding"] == 0
    assert seen.busy_s == pytest.approx(sum(seen.seconds.values()) - seen.seconds[BETWEEN])
