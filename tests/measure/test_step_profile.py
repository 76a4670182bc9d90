from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from benchmarks.bench.step_profile import BETWEEN, peak_memory_growth, profile_once

CPU = torch.device("cpu")


def test_memory_is_the_peak_of_live_tensors_without_earlier_ones():
    earlier = torch.empty(1000, dtype=torch.uint8)
    later = []

    def run() -> None:
        nonlocal earlier
        del earlier
        first = torch.empty(4_000_000, dtype=torch.uint8)
        del first
        second = torch.empty(3_000_000, dtype=torch.uint8)
        later.append(torch.empty(2_000_000, dtype=torch.uint8))
        del second

    assert profile_once(run, device=CPU).peak_memory_growth == 5_000_000
    assert peak_memory_growth([(1, 100), (2, 50), (1, -100), (3, -4000), (4, 60), (1, 10), (1, -10), (1, -100)]) == 150


def test_time_by_group_adds_up():
    weight, image = torch.randn(64, 64, 3, 3), torch.randn(1, 64, 48, 48)

    def run() -> None:
        for _ in range(5):
            F.conv2d(image, weight)
        image.clone()

    profile = profile_once(run, device=CPU)
    assert profile.seconds["convolution"] > profile.seconds["copies and fills"] > 0
    assert profile.seconds["norm, activation, padding"] == 0
    assert profile.busy_s == pytest.approx(sum(profile.seconds.values()) - profile.seconds[BETWEEN])
