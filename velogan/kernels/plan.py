"""A network as a list of steps, from the modules that declare their form.

Whoever computes a network in another way makes a plan from its `tokens`; `Planned` runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from velogan.types import Marks, forward_kind_of, has_hooks, walk


@dataclass
class State:
    """What the steps work on."""

    x: Tensor
    inner: Tensor | None = None  # x without the padding that the last step added
    residual: Tensor | None = None
    skips: list[Tensor] = field(default_factory=list)


Step = Callable[[State], None]

SAVE, ADD = nn.Identity(), nn.Identity()
"""Marks at both ends of a residual branch."""

KEEP, JOIN = nn.Identity(), nn.Identity()
"""Marks at both ends of what a U-Net's skip connection passes."""


class Opaque(nn.Module):
    """A module that is called as it is, even if it derives from a known layer."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.forward = net.__call__  # not a child, so that the weights are registered once
        self.of = (net,)


_MARKS: Marks = {"sequence": ((), ()), "residual": ((SAVE,), (ADD,)), "skip": ((KEEP,), (JOIN,))}


def tokens(net: nn.Module) -> Iterator[nn.Module]:
    """The layers of `net` in order, with marks; what does not declare its form is `Opaque`."""
    for layer in walk(net, _MARKS):
        if forward_kind_of(layer) != "layer":
            yield Opaque(layer)
        elif not isinstance(layer, nn.Identity) or layer in (SAVE, ADD, KEEP, JOIN):
            yield layer


Plan = list[tuple[nn.Module, Step]]
"""Steps in order, each with the token that it is for; ADD if it adds, too."""


def plain_plan(found: Iterable[nn.Module]) -> Plan:
    """A step for each token: the layers themselves."""
    return [(token, OF_MARKS.get(token) or apply(token)) for token in found]


class Planned(nn.Module):
    """`net` computed by the steps of `plan`, over the same weights. `layout`: the memory layout that the steps need.

    With `recompute`, few activations are kept for the backward pass; see `recomputing`. If a hook is added later to a
    module with a form, the plain `net` runs.
    """

    def __init__(self, net: nn.Module, plan: Plan, *, layout: torch.memory_format | None = None, recompute: bool):
        super().__init__()
        self._net = [net]  # in a list, so that only the plain network registers the weights
        self._layout = layout
        random = any(isinstance(module, nn.Dropout) for module in net.modules())
        self._steps = recomputing(plan, random=random) if recompute else [step for _, step in plan]
        self._known = [module for module in net.modules() if forward_kind_of(module) is not None]

    def forward(self, x: Tensor) -> Tensor:
        if any(has_hooks(module) for module in self._known):
            return self._net[0](x)
        state = State(x if self._layout is None else x.contiguous(memory_format=self._layout))
        for step in self._steps:
            step(state)
        return state.x


def recomputing(plan: Plan, *, random: bool) -> list[Step]:
    """The steps of `plan` in segments whose activations are computed twice.

    A segment is a residual block, or a convolution with what comes before and behind it. For the backward pass it keeps
    only its input, and there it computes the rest again (Chen et al. 2016, "Training Deep Nets with Sublinear Memory
    Cost"). Gradients are the same bits. `random`: there are random numbers, which are put back for that.
    """
    made: list[Step] = []
    segment: list[Step] = []
    full, depth = False, 0
    for token, step in plan:
        apart = token in (KEEP, JOIN)  # what they hold is kept for longer than a segment
        if segment and (apart or (full and depth == 0 and (token is SAVE or isinstance(token, _BEGINS)))):
            made.append(_Segment(segment, random=random))
            segment, full = [], False
        if apart:
            made.append(step)
            continue
        segment.append(step)
        full |= isinstance(token, _CONVOLUTIONS)
        depth += (token is SAVE) - (token is ADD)
    return [*made, _Segment(segment, random=random)] if segment else made


_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d, Opaque)
_BEGINS = (*_CONVOLUTIONS, nn.ReflectionPad2d, nn.Upsample)


class _Segment:
    def __init__(self, steps: list[Step], *, random: bool):
        self.steps, self.random = steps, random

    def __call__(self, state: State) -> None:
        given = (state.x, state.inner)
        state.x, state.inner = checkpoint(self._run, *given, use_reentrant=False, preserve_rng_state=self.random)

    def _run(self, x: Tensor, inner: Tensor | None) -> tuple[Tensor, Tensor | None]:
        state = State(x, inner)
        for step in self.steps:
            step(state)
        return state.x, state.inner


def apply(function: Callable[[Tensor], Tensor]) -> Step:
    """The step that computes `function`."""

    def step(state: State) -> None:
        state.x, state.inner = function(state.x), None

    return step


def save(state: State) -> None:
    """Begins a residual branch."""
    state.residual = state.x if state.inner is None else state.inner


def add(state: State) -> None:
    """Ends a residual branch."""
    assert state.residual is not None
    state.x, state.inner = state.residual + state.x, None


def keep(state: State) -> None:
    """Begins what a skip connection passes."""
    state.skips.append(state.x if state.inner is None else state.inner)


def join(state: State) -> None:
    """Ends what a skip connection passes."""
    state.x, state.inner = torch.cat([state.skips.pop(), state.x], 1), None


OF_MARKS: dict[nn.Module, Step] = {SAVE: save, ADD: add, KEEP: keep, JOIN: join}
"""The steps of the marks by themselves."""
