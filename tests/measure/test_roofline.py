"""The roofline of a step: its convolutions, recorded and counted."""

from __future__ import annotations

from collections.abc import Callable

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


def test_counts_transposed_convolutions_by_their_input():
    x, weight = torch.randn(1, 4, 6, 6), torch.randn(4, 2, 3, 3)
    calls = record_convolutions(lambda: F.conv_transpose2d(x, weight, stride=2))
    assert sum(call.flops for call in calls.elements()) == 2 * (2 * 3 * 3) * 4 * 36


def test_on_a_gpu_a_call_is_timed_in_a_graph_of_many(monkeypatch: pytest.MonkeyPatch):
    replayed: list[int] = []

    def record(run: Callable[[], object], device: torch.device) -> Callable[[], object]:
        assert device == CPU
        run()
        return lambda: replayed.append(1)

    clock = iter(range(10**6))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))  # each replay takes a second
    calls = record_convolutions(step)
    times = Roofline(calls, device=CPU, record=record).times()
    assert all(seconds == 1 / REPEATS for seconds in times.values())
    assert len(replayed) == len(calls) * (4 * (1 + 2) + (1 + 3)), "four variants are tried, the best is measured again"


@pytest.mark.gpu
def test_a_replay_has_repeats_calls():
    a = torch.zeros((), device="cuda")
    replay = in_graph(lambda: a.add_(1), a.device)
    a.zero_()
    replay()
    assert a.item() == REPEATS
