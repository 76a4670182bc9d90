"""The shared words of all rooms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor, nn

Image = Tensor
"""One image or a batch of images: `(C, H, W)` or `(B, C, H, W)`, float, values in [-1, 1]."""

Batch = dict[str, Tensor]
"""Named tensors of one step. `A` and `B` are `(B, C, H, W)` float32 in [-1, 1], one per domain."""

Nets = Mapping[str, nn.Module]
"""Networks by role, as each method names them: `G_A` (A to B), `D_A` (judges domain B)."""

Letter = Literal["A", "B"]
"""A domain."""

Progress = Callable[[int, int], None]
"""Called with what is done of a task, and with all of it."""

Direction = Literal["a2b", "b2a"]
"""A way to translate."""

GENERATOR_FILES: dict[Direction, str] = {"a2b": "G_A", "b2a": "G_B"}
"""The names under which whole generators are kept, by direction: those of the reference implementation."""

Form = Literal["layer", "sequence", "residual", "skip", "change", "mask", "maps", "mix", "mixture"]
"""What the `forward` of a module computes, for those who compute the same in another way.

layer: what the layer of torch computes that it derives from; without such a base, what only its own `forward` knows,
which takes any type of numbers. sequence: its children one after the other. residual: `x + child(x)`. skip:
`cat([x, child(x)], 1)`. change, mask: as `ChangeGenerator`, and as `MaskGenerator`
and `KeepGenerator`, of `networks.generators` have it. maps:
as `Maps` of `networks.efficientnet_lite`; mix: as `Mix` of `networks.projected`. mixture: as `Mixed` of
`networks.supernet`, whose `forward` takes a `convolve` that stands for `F.conv2d`.

A class declares it beside its `forward`: `form: ClassVar[Form] = "residual"`.
"""


@dataclass(frozen=True)
class Decision:
    """A setting that was decided for a run, with the reason; saved in its `run.json`."""

    field: str
    value: str
    reason: str


@runtime_checkable
class Composed(Protocol):
    """A network with a `forward` of its own around parts that may be computed in another way."""

    def by(self, other: Callable[[nn.Module], nn.Module]) -> nn.Module:
        """The same network, over the same weights, with each such part replaced by `other(part)`."""
        ...


def form_of(net: nn.Module) -> Form | None:
    """The declared form of `net`. None: nobody but its own `forward` knows, so it must be called whole.

    `nn.Sequential` and the layers of torch count as declared. A declaration holds for the `forward` beside it: a
    subclass with another one must declare anew. Whoever has hooks must be called, so that they are.
    """
    kind = type(net)
    declares = next(base for base in kind.__mro__ if "form" in vars(base) or base.__module__.startswith("torch.nn."))
    own = kind.forward is not declares.forward or kind.__call__ is not nn.Module.__call__ or "forward" in vars(net)
    if own or hooked(net):
        return None
    if declares is nn.Sequential:
        return "sequence"
    form, children = vars(declares).get("form", "layer"), len(layers_of(net))
    return form if children == {"layer": 0, "change": 3, "mix": 0}.get(form, 1) else None


def layers_of(net: nn.Module) -> list[nn.Module]:
    """The children of `net` in order; unlike `children` it repeats what stands there twice."""
    return [child for child in net._modules.values() if child is not None]


Marks = Mapping[Form | None, tuple[Sequence[nn.Module], Sequence[nn.Module]]]
"""Modules that stand before and behind the layers of a module of some form, for whoever follows a walk."""


def walk(net: nn.Module, marks: Marks) -> Iterator[nn.Module]:
    """The layers of `net` in the order in which they run, between the marks of the forms around them.

    A module whose form has no marks is given whole.
    """
    form = form_of(net)
    if form not in marks:
        yield net
        return
    before, behind = marks[form]
    yield from before
    for layer in layers_of(net):
        yield from walk(layer, marks)
    yield from behind


def hooked(net: nn.Module) -> bool:
    """Whether somebody looks on, or steps in, when `net` itself is called."""
    return any((net._forward_hooks, net._forward_pre_hooks, net._backward_hooks, net._backward_pre_hooks))
