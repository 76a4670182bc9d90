from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from velogan.kernels.few_channel import few_channel_conv2d, is_few_channel_conv


@pytest.mark.parametrize(("inputs", "outputs"), [(3, 16), (16, 3), (4, 4), (1, 9)])
@pytest.mark.parametrize("kernel", [5, 7])
def test_gradients_equal_the_library_s(inputs: int, outputs: int, kernel: int):
    torch.manual_seed(0)
    shapes = [(2, inputs, 13, 11), (outputs, inputs, kernel, kernel), (outputs,)]
    exact = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    leaves = [value.detach().float().requires_grad_() for value in exact]
    wanted = F.conv2d(exact[0], exact[1], exact[2])
    seen = few_channel_conv2d(leaves[0], leaves[1], leaves[2])
    gradient = torch.randn_like(wanted)
    torch.testing.assert_close(seen.double(), wanted, rtol=1e-4, atol=1e-4)
    grads = torch.autograd.grad(seen, leaves, gradient.float())
    for mine, theirs in zip(grads, torch.autograd.grad(wanted, exact, gradient)):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=2e-4)


def test_autocast_is_followed():
    x, weight = torch.randn(1, 3, 12, 12), torch.randn(8, 3, 7, 7, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = few_channel_conv2d(x, weight, None)
    out.sum().backward()
    assert out.dtype is torch.bfloat16
    assert weight.grad is not None
    assert weight.grad.dtype is torch.float32


def test_only_thin_square_stride_one_convolutions_qualify():
    assert is_few_channel_conv(nn.Conv2d(3, 64, 7))
    assert is_few_channel_conv(nn.Conv2d(64, 3, 7))
    for other in (
        nn.Conv2d(3, 64, 7, stride=2),
        nn.Conv2d(3, 64, 7, padding=3),
        nn.Conv2d(64, 64, 7),
        nn.Conv2d(3, 64, 3),
        nn.Conv2d(3, 64, (5, 7)),
        nn.ConvTranspose2d(64, 3, 7),
    ):
        assert not is_few_channel_conv(other)
