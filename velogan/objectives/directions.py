"""What processes exchange within a step, where each trains other networks on the same images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Swap = Callable[[Tensor, Sequence[int]], Tensor]
"""Gives the peer a tensor for one of its own, of this shape and the same type. Both must call it, in one order."""


def traded(mine: Tensor, shape: Sequence[int], swap: Swap) -> Tensor:
    """The peer's tensor, of this shape, for `mine`. Its gradient goes back to the peer, for that of `mine`.

    Both processes must run a backward pass through it; their gradients are added where each tensor was made.
    """
    theirs: Any = _Traded.apply(mine, shape, swap)
    return theirs


class _Traded(torch.autograd.Function):
    """One exchange each way, so both processes exchange in one order whatever else their graphs hold."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, shape: Sequence[int], swap: Swap) -> Tensor:
        ctx.shape, ctx.swap = mine.shape, swap
        theirs = swap(mine, shape)
        by_channels = mine.is_contiguous(memory_format=torch.channels_last)
        return theirs.contiguous(memory_format=torch.channels_last) if by_channels else theirs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.swap(gradients[0], ctx.shape), None, None
