from __future__ import annotations

import pytest
import torch
from torch import Tensor

from velogan.engine.streams import StreamRunner

pytestmark = pytest.mark.gpu


def test_parts_have_streams_of_their_own_and_meet_on_the_current_one():
    device = torch.device("cuda")
    weight = (torch.eye(512, device=device) * 1.01).requires_grad_()
    x = torch.rand(512, 512, device=device)
    seen: list[torch.cuda.Stream] = []

    def part(scale: float) -> tuple[Tensor, ...]:
        seen.append(torch.cuda.current_stream())
        y = x * scale
        for _ in range(30):
            y = y @ weight
        return y, y.mean()

    def loss(given: list[tuple[Tensor, ...]]) -> list[Tensor]:
        total = sum(value.square().mean() for tensors in given for value in tensors)
        weight.grad = None
        total.backward()  # pyright: ignore
        assert weight.grad is not None
        return [*(value for tensors in given for value in tensors), weight.grad]

    expected = loss([part(0.5), part(2.0)])
    seen.clear()
    result = loss(StreamRunner(device)([lambda: part(0.5), lambda: part(2.0)]))
    assert len({stream.cuda_stream for stream in [*seen, torch.cuda.current_stream()]}) == 3
    for mine, theirs in zip(result, expected):
        torch.testing.assert_close(mine, theirs)


def test_casts_of_weights_are_not_shared_between_streams():
    device = torch.device("cuda")
    weight = torch.rand(64, 64, device=device, requires_grad=True)
    cached: list[bool] = []

    def part() -> tuple[Tensor, ...]:
        cached.append(torch.is_autocast_cache_enabled())
        return (weight @ weight,)

    with torch.autocast("cuda", dtype=torch.bfloat16):
        StreamRunner(device)([part, part])
        cached.append(torch.is_autocast_cache_enabled())
    assert cached == [False, False, True]
