"""The interface between a method and the engine: a step is a short list of phases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from velogan.types import Batch, Nets

PhaseCache = Mapping[str, Tensor]
"""Tensors from earlier phases of a step for later phases on the same split; the engine detaches them."""


@dataclass(frozen=True, kw_only=True)
class LossOutput:
    """Result of a phase's loss function: the scalar to minimise, its named parts for the log, and tensors to cache."""

    loss: Tensor
    logged: Mapping[str, Tensor]
    cache: PhaseCache = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One part of a step: a loss, its gradients and an update.

    `name` is also the trace range and the log prefix. `trains` names the networks that this phase updates; all others
    are frozen. `loss` is a function of (nets, batch, cache) that knows no device, rank, precision, optimizer or graph.
    `split`, "train" or one of `HALVES`, says which pictures it gets; cache is kept per split.
    """

    name: str
    trains: tuple[str, ...]
    loss: Callable[[Nets, Batch, PhaseCache], LossOutput]
    split: str = "train"


Part = Callable[[], tuple[Tensor, ...]]
"""A part of a loss's computation."""

Runner = Callable[[Sequence[Part]], list[tuple[Tensor, ...]]]
"""Runs parts and returns their results, ready for use on the device."""

_runner: ContextVar[Runner | None] = ContextVar("runner", default=None)


def run_branches(*parts: Part) -> list[tuple[Tensor, ...]]:
    """Runs `parts` and returns their results. They must be independent, so that the engine may overlap them."""
    runner = _runner.get()
    return [part() for part in parts] if runner is None else runner(parts)


def batched_forward(net: Callable[[Tensor], Any], *images: Tensor, batched: bool = True) -> tuple[Any, ...]:
    """`net` on several batches `(B, C, H, W)`: its result for each, a tensor or logits of several heads.

    In one pass; where that is not `batched`, in one for each.
    """
    if len(images) == 1 or not batched:
        return tuple(net(x) for x in images)
    sizes = [len(x) for x in images]
    out = net(torch.cat([x.to(images[0].dtype) for x in images]))
    return out.split(sizes) if isinstance(out, Tensor) else tuple(zip(*(head.split(sizes) for head in out)))


@contextmanager
def use_branch_runner(runner: Runner | None) -> Iterator[None]:
    """Within the context `run_branches` gives its parts to `runner`; with None it runs them in order."""
    token = _runner.set(runner)
    try:
        yield
    finally:
        _runner.reset(token)


HALVES = ("first_half", "second_half")
"""The training pictures of each domain, divided at random into two halves."""


class Objective(Protocol):
    """A method's losses.

    `draws` has an entry for each split of the phases: the number of uniform numbers in [0, 1) per image that the losses
    get as `batch["uniform"]`, `(draws, B)`. The losses have no other randomness, so that a step is a function of
    (weights, state, batches). The first split's images make an epoch. `state` holds, as buffers, what stays between
    steps: the pools of fakes. An objective may have `swap_halves_at`, the share of the run after which the two halves
    change places.
    """

    draws: Mapping[str, int]
    state: nn.Module

    def phases(self) -> list[Phase]:
        """The phases of one step, in order."""
        ...
