"""Shared types, and `ForwardKind`: what a module's `forward` computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

Image = Tensor
"""One image or a batch of images: `(C, H, W)` or `(B, C, H, W)`, float, values in [-1, 1]."""

Batch = dict[str, Tensor]
"""Named tensors of one step. `A` and `B`, one per domain, are `(batch, C, H, W)` float32 in [-1, 1]."""

Nets = Mapping[str, nn.Module]
"""Networks by role, as each method names them: `G_A` (A to B), `D_A` (discriminator of domain B)."""

Letter = Literal["A", "B"]
"""The name of a domain."""

Progress = Callable[[int, int], None]
"""Callback with the number of finished units of a task and the total."""

Direction = Literal["a2b", "b2a"]
"""Translation direction."""


def without_autocast(x: Tensor) -> torch.autocast:
    """Return a context that disables autocast on the device of `x`, or on the CPU if `x` is on the meta device."""
    return torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False)


def domains_of(direction: Direction) -> tuple[Letter, Letter]:
    """Return the source and the target domain of a direction."""
    return ("A", "B") if direction == "a2b" else ("B", "A")


GENERATOR_FILES: dict[Direction, str] = {"a2b": "G_A", "b2a": "G_B"}
"""File names (without suffix) of saved generators by direction, as in the reference implementation."""

ForwardKind = Literal["layer", "sequence", "residual", "skip", "change", "mask", "maps", "mix", "mixture"]
"""What a module's `forward` computes, so that accelerated implementations can replace it.

layer: the same as its torch base class, or, without one, a custom computation for any dtype
sequence: its children one after the other
residual: `x + child(x)`; skip: `cat([x, child(x)], 1)`
change: the `forward` of `networks.outputs.ChangeGenerator`
mask: the `forward` of `networks.outputs.MaskGenerator` or `KeepGenerator`
maps: the `forward` of `networks.efficientnet_lite.FeatureExtractor`
mix: the `forward` of `networks.projected.Mix`
mixture: the `forward` of `search.supernet.MixedOp`, which takes a `convolve` in place of `F.conv2d`

A class declares it next to its `forward`: `forward_kind: ClassVar[ForwardKind] = "residual"`.
"""


@dataclass(frozen=True)
class Decision:
    """A setting that was decided for a run, with the reason; saved in its `run.json`."""

    field: str
    value: str
    reason: str


@runtime_checkable
class Composed(Protocol):
    """A network whose `forward` is custom but whose sub-networks may be replaced by accelerated ones."""

    def map_parts(self, function: Callable[[nn.Module], nn.Module]) -> nn.Module:
        """Return a network with the same weights, in which `function(part)` replaces each of these sub-networks."""
        ...


def forward_kind_of(net: nn.Module) -> ForwardKind | None:
    """Return what `forward` of `net` is declared to compute; None if unknown: the module must be called normally.

    `nn.Sequential` and torch layers need no declaration. A declaration applies to the `forward` of the same class: a
    subclass with its own `forward` must declare again. Modules with hooks must be called normally, to run the hooks.
    """
    cls = type(net)
    declaring_class = next(
        base for base in cls.__mro__ if "forward_kind" in vars(base) or base.__module__.startswith("torch.nn.")
    )
    has_own_forward = cls.forward is not declaring_class.forward or "forward" in vars(net)
    if has_own_forward or cls.__call__ is not nn.Module.__call__ or has_hooks(net):
        return None
    if declaring_class is nn.Sequential:
        return "sequence"
    kind, children = vars(declaring_class).get("forward_kind", "layer"), len(layers_of(net))
    return kind if children == {"layer": 0, "change": 3, "mix": 0}.get(kind, 1) else None


def layers_of(net: nn.Module) -> list[nn.Module]:
    """Return the children of `net` in order; unlike `net.children()`, a module that occurs twice is repeated."""
    return [child for child in net._modules.values() if child is not None]


Marks = Mapping[ForwardKind | None, tuple[Sequence[nn.Module], Sequence[nn.Module]]]
"""Marker modules for `walk` to yield before and after the layers of a module, by the module's `ForwardKind`."""


def walk(net: nn.Module, marks: Marks) -> Iterator[nn.Module]:
    """Yield the layers of `net` in execution order, with the markers of the modules that contain them.

    A module whose kind has no markers is yielded itself instead of its layers.
    """
    kind = forward_kind_of(net)
    if kind not in marks:
        yield net
        return
    before, after = marks[kind]
    yield from before
    for layer in layers_of(net):
        yield from walk(layer, marks)
    yield from after


def has_hooks(net: nn.Module) -> bool:
    """Return whether forward or backward hooks are registered on `net` itself."""
    return any((net._forward_hooks, net._forward_pre_hooks, net._backward_hooks, net._backward_pre_hooks))
