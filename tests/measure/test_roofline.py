"""The roofline of a step: its convolutions, recorded and counted."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from benchmarks.bench.roofline import REPEATS, Roofline, flops, in_graph, record_convolutions, total

CPU = torch.device("cpu")


def step() -> None:
    x = torch.randn(2, 3, 9, 9, requires_grad=True)
    weight = torch.randn(5, 3, 3, 3, requires_grad=True)
    F.conv2d(x, weight, torch.zeros(5), stride=2, padding=1).sum().backward()


def test_counts_multiplications_forward_and_of_both_gradients():
    calls = record_convolutions(step)
    forward = 2 * (3 * 3 * 3) * 5 * (5 * 5) * 2  # taps, features, positions, images
    assert flops(calls) == 3 * forward
    assert total(calls, Roofline(calls, device=CPU).times()) > 0


@pytest.mark.gpu
def test_a_replay_has_repeats_calls():
    a = torch.zeros((), device="cuda")
    replay = in_graph(lambda: a.add_(1), a.device)
    a.zero_()
    replay()
    assert a.item() == REPEATS
