from __future__ import annotations

import pytest
import torch
from torch import Tensor

from velogan.engine.streams import StreamRunner

pytestmark = pytest.mark.gpu


def test_branches_have_separate_streams_and_join_the_current_one():
    device = torch.device("cuda")
    weight = (torch.eye(512, device=device) * 1.01).requires_grad_()
    x = torch.rand(512, 512, device=device)
    streams: list[torch.cuda.Stream] = []

    def branch(scale: float) -> tuple[Tensor, ...]:
        streams.append(torch.cuda.current_stream())
        y = x * scale
        for _ in range(30):
            y = y @ weight
        return y, y.mean()

    def loss(outputs: list[tuple[Tensor, ...]]) -> list[Tensor]:
        total = sum(value.square().mean() for tensors in outputs for value in tensors)
        weight.grad = None
        total.backward()  # pyright: ignore
        assert weight.grad is not None
        return [*(value for tensors in outputs for value in tensors), weight.grad]

    expected = loss([branch(0.5), branch(2.0)])
    streams.clear()
    result = loss(StreamRunner(device)([lambda: branch(0.5), lambda: branch(2.0)]))
    assert len({stream.cuda_stream for stream in [*streams, torch.cuda.current_stream()]}) == 3
    for actual, exact in zip(result, expected):
        torch.testing.assert_close(actual, exact)


def test_streams_do_not_share_casts_of_weights():
    device = torch.device("cuda")
    weight = torch.rand(64, 64, device=device, requires_grad=True)
    cached: list[bool] = []

    def branch() -> tuple[Tensor, ...]:
        cached.append(torch.is_autocast_cache_enabled())
        return (weight @ weight,)

    with torch.autocast("cuda", dtype=torch.bfloat16):
        StreamRunner(device)([branch, branch])
        cached.append(torch.is_autocast_cache_enabled())
    assert cached == [False, False, True]
