from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from velogan.search.wide import convolve9


@pytest.mark.parametrize("side", [9, 12, 16, 23])
def test_it_is_the_library_s_convolution(side: int):
    torch.manual_seed(side)
    images, kernel, bias = torch.randn(2, 3, side, 2 * side), torch.randn(4, 3, 9, 9), torch.randn(4)
    inputs = [value.requires_grad_() for value in (images, kernel, bias)]
    expected, seen = F.conv2d(images, kernel, bias), convolve9(images, kernel, bias)
    assert seen.shape == expected.shape
    weights = torch.randn_like(expected)
    wanted, got = ([out, *_gradients(out, weights, inputs)] for out in (expected, seen))
    for one, other in zip(got, wanted):
        assert (one - other).norm() < 1e-5 * other.norm()


def _gradients(out: Tensor, weights: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    return [*torch.autograd.grad((out * weights).sum(), inputs)]
