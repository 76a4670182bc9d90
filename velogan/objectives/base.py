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
    terms: Mapping[str, Tensor]
    cache: PhaseCache = field(default_factory=dict)


LossFunction = Callable[[Nets, Batch, PhaseCache], LossOutput]


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One part of a step: a loss, its gradients and an update.

    `name`: also the profiler label and log prefix. `trains`: the roles that this phase updates; all others are frozen.
    `loss`: a function of (nets, batch, cache), independent of device, rank, precision, optimizer and CUDA graph.
    `split`: which images it gets, "train" or one of `HALVES`; each split has its own cache.
    """

    name: str
    trains: tuple[str, ...]
    loss: LossFunction
    split: str = "train"


Branch = Callable[[], tuple[Tensor, ...]]
"""Computes a part of a loss, independently of the loss's other branches, and returns tensors."""

BranchRunner = Callable[[Sequence[Branch]], list[tuple[Tensor, ...]]]
"""Runs branches and returns their results in the same order, ready for use on the current CUDA stream."""

_runner: ContextVar[BranchRunner | None] = ContextVar("runner", default=None)


def run_branches(*branches: Branch) -> list[tuple[Tensor, ...]]:
    """Return the results of `branches`; they must be independent, so that the engine may run them concurrently."""
    runner = _runner.get()
    return [branch() for branch in branches] if runner is None else runner(branches)


def batched_forward(net: Callable[[Tensor], Any], *images: Tensor, batched: bool = True) -> tuple[Any, ...]:
    """Return the output of `net`, a tensor or a sequence of tensors, for each batch `(B, C, H, W)` of `images`.

    With `batched`, one forward pass over the concatenated batches; otherwise one pass per batch.
    """
    if len(images) == 1 or not batched:
        return tuple(net(x) for x in images)
    sizes = [len(x) for x in images]
    out = net(torch.cat([x.to(images[0].dtype) for x in images]))
    return out.split(sizes) if isinstance(out, Tensor) else tuple(zip(*(head.split(sizes) for head in out)))


@contextmanager
def use_branch_runner(runner: BranchRunner | None) -> Iterator[None]:
    """Make `run_branches` use `runner` within the context; None: run branches one after the other."""
    token = _runner.set(runner)
    try:
        yield
    finally:
        _runner.reset(token)


HALVES = ("first_half", "second_half")
"""Names of the two splits into which the training images of each domain are divided at random."""


class UniformSlots:
    """Assigns rows of a batch's uniform random numbers to named purposes, in the order of `add`."""

    def __init__(self) -> None:
        self.num_uniforms = 0
        self._rows: dict[str, slice] = {}

    def add(self, name: str, count: int) -> None:
        """Reserve the next `count` rows."""
        self._rows[name] = slice(self.num_uniforms, self.num_uniforms + count)
        self.num_uniforms += count

    def rows(self, batch: Batch, name: str) -> Tensor:
        """Return the rows `(count, B)` that were reserved as `name`."""
        return batch["uniform"][self._rows[name]]


class Objective(Protocol):
    """A method's losses.

    `num_uniforms`: for each split, the number of uniform random numbers in [0, 1) per image, which the losses get as
    `batch["uniform"]`, `(num_uniforms, B)`. The losses have no other randomness, so that a step is a function of
    (weights, state, batches). The first split defines the length of an epoch. `state`: buffers that persist between
    steps, the pools of fakes. Optional: `swap_halves_at`, the fraction of the run after which `HALVES` are exchanged.
    """

    num_uniforms: Mapping[str, int]
    state: nn.Module

    def phases(self) -> list[Phase]:
        """Return the phases of one step, in order."""
        ...
