"""Turn a network into a list of steps; modules that do not declare their `forward_kind` are called unchanged.

`tokens` lists the layers; a plan has a step for each layer, or for several together; `PlannedNetwork` runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from velogan.types import Marks, forward_kind_of, has_hooks, walk


@dataclass
class PlanState:
    """The tensors that the steps read and replace.

    x: the current feature map
    unpadded: `x` without the padding that the last step added
    residual: the input of the current residual branch
    skips: stack of feature maps of a U-Net's skip connections
    """

    x: Tensor
    unpadded: Tensor | None = None
    residual: Tensor | None = None
    skips: list[Tensor] = field(default_factory=list)


PlanStep = Callable[[PlanState], None]

RESIDUAL_START, RESIDUAL_END = nn.Identity(), nn.Identity()
"""Marks of the start and end of a residual branch."""

SKIP_START, SKIP_END = nn.Identity(), nn.Identity()
"""Marks of the start and end of the layers that a U-Net's skip connection bypasses."""


class Opaque(nn.Module):
    """Wraps a module that is called unchanged, even if it derives from a known layer."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.forward = net.__call__  # not a child, so that the weights are registered once
        self.wrapped = (net,)


_MARKS: Marks = {
    "sequence": ((), ()),
    "residual": ((RESIDUAL_START,), (RESIDUAL_END,)),
    "skip": ((SKIP_START,), (SKIP_END,)),
}


def tokens(net: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of `net` in order, with marks around blocks; unsupported modules become `Opaque`."""
    for layer in walk(net, _MARKS):
        if forward_kind_of(layer) != "layer":
            yield Opaque(layer)
        elif not isinstance(layer, nn.Identity) or layer in MARK_STEPS:
            yield layer


TokenStep = tuple[nn.Module, PlanStep]
"""A step with its token: the layer that it computes, or RESIDUAL_END if it also ends a residual branch."""

Plan = list[TokenStep]


def plain_plan(layers: Iterable[nn.Module]) -> Plan:
    """Return a plan that calls the layers themselves, without fusion."""
    return [(token, MARK_STEPS.get(token) or as_step(token)) for token in layers]


class PlannedNetwork(nn.Module):
    """Computes `net` by the steps of `plan`, with the same weights. `layout` is the memory layout that the steps need.

    With `recompute`, few activations are stored for the backward pass; see `recompute_segments`. While a module
    that declares its `forward_kind` has hooks, `net` itself runs.
    """

    def __init__(self, net: nn.Module, plan: Plan, *, layout: torch.memory_format | None = None, recompute: bool):
        super().__init__()
        self._net = [net]  # in a list, so that only the plain network registers the weights
        self._layout = layout
        has_dropout = any(isinstance(module, nn.Dropout) for module in net.modules())
        self._steps = recompute_segments(plan, has_dropout=has_dropout) if recompute else [step for _, step in plan]
        self._hookable = [module for module in net.modules() if forward_kind_of(module) is not None]

    def forward(self, x: Tensor) -> Tensor:
        if any(has_hooks(module) for module in self._hookable):
            return self._net[0](x)
        state = PlanState(x if self._layout is None else x.contiguous(memory_format=self._layout))
        for step in self._steps:
            step(state)
        return state.x


def recompute_segments(plan: Plan, *, has_dropout: bool) -> list[PlanStep]:
    """Return the steps of `plan` in segments whose activations are recomputed in the backward pass.

    A segment is a residual block, or a convolution with the layers around it. It stores only its input for the
    backward pass, which recomputes the rest (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost").
    Gradients are bit for bit the same. If `has_dropout`, the random state is restored for the recomputation.
    """
    steps: list[PlanStep] = []
    segment: list[PlanStep] = []
    has_convolution, depth = False, 0
    for token, step in plan:
        is_skip = token in (SKIP_START, SKIP_END)  # their feature maps outlive a segment
        starts_segment = token is RESIDUAL_START or isinstance(token, _SEGMENT_STARTS)
        if segment and (is_skip or (has_convolution and depth == 0 and starts_segment)):
            steps.append(_Segment(segment, has_dropout=has_dropout))
            segment, has_convolution = [], False
        if is_skip:
            steps.append(step)
            continue
        segment.append(step)
        has_convolution |= isinstance(token, _CONVOLUTIONS)
        depth += (token is RESIDUAL_START) - (token is RESIDUAL_END)
    return [*steps, _Segment(segment, has_dropout=has_dropout)] if segment else steps


_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d, Opaque)
_SEGMENT_STARTS = (*_CONVOLUTIONS, nn.ReflectionPad2d, nn.Upsample)


class _Segment:
    def __init__(self, steps: list[PlanStep], *, has_dropout: bool):
        self._steps, self._has_dropout = steps, has_dropout

    def __call__(self, state: PlanState) -> None:
        inputs = (state.x, state.unpadded)
        outputs = checkpoint(self._run, *inputs, use_reentrant=False, preserve_rng_state=self._has_dropout)
        state.x, state.unpadded = outputs

    def _run(self, x: Tensor, unpadded: Tensor | None) -> tuple[Tensor, Tensor | None]:
        state = PlanState(x, unpadded)
        for step in self._steps:
            step(state)
        return state.x, state.unpadded


def as_step(function: Callable[[Tensor], Tensor]) -> PlanStep:
    def step(state: PlanState) -> None:
        state.x, state.unpadded = function(state.x), None

    return step


def start_residual(state: PlanState) -> None:
    """Store the input of a residual branch."""
    state.residual = state.x if state.unpadded is None else state.unpadded


def end_residual(state: PlanState) -> None:
    """Add the input of the residual branch to its result."""
    assert state.residual is not None
    state.x, state.unpadded = state.residual + state.x, None


def start_skip(state: PlanState) -> None:
    """Push the feature map of a skip connection."""
    state.skips.append(state.x if state.unpadded is None else state.unpadded)


def end_skip(state: PlanState) -> None:
    """Concatenate the skip connection's feature map and the current one along channels."""
    state.x, state.unpadded = torch.cat([state.skips.pop(), state.x], 1), None


MARK_STEPS: dict[nn.Module, PlanStep] = {
    RESIDUAL_START: start_residual,
    RESIDUAL_END: end_residual,
    SKIP_START: start_skip,
    SKIP_END: end_skip,
}
"""The steps of marks that are not fused with layers."""
