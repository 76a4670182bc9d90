from __future__ import annotations

import pytest
import torch
from torch import Tensor

from velogan.engine.streams import StreamRunner

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


def test_branches_have_their_own_streams_and_join_the_current_one():
    weight = (torch.eye(512, device=CUDA) * 1.01).requires_grad_()
    x = torch.rand(512, 512, device=CUDA)
    streams: list[torch.cuda.Stream] = []

    def branch(scale: float) -> tuple[Tensor, ...]:
        streams.append(torch.cuda.current_stream())
        y = x * scale
        for _ in range(30):
            y = y @ weight
        return y, y.mean()

    def with_gradient(outputs: list[tuple[Tensor, ...]]) -> list[Tensor]:
        values, weight.grad = [value for tensors in outputs for value in tensors], None
        sum(value.square().mean() for value in values).backward()  # pyright: ignore
        assert weight.grad is not None
        return [*values, weight.grad]

    expected = with_gradient([branch(0.5), branch(2.0)])
    streams.clear()
    result = with_gradient(StreamRunner(CUDA)([lambda: branch(0.5), lambda: branch(2.0)]))
    assert len({stream.cuda_stream for stream in [*streams, torch.cuda.current_stream()]}) == 3
    torch.testing.assert_close(result, expected)


def test_streams_share_no_casts_of_weights():
    weight = torch.rand(64, 64, device=CUDA, requires_grad=True)
    is_cached: list[bool] = []

    def branch() -> tuple[Tensor, ...]:
        is_cached.append(torch.is_autocast_cache_enabled())
        return (weight @ weight,)

    with torch.autocast("cuda", dtype=torch.bfloat16):
        StreamRunner(CUDA)([branch, branch])
        is_cached.append(torch.is_autocast_cache_enabled())
    assert is_cached == [False, False, True]
