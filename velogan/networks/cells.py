"""Networks of cells: the search space of "CycleGANAS" (An and Joo 2023, section 3.2), and networks chosen from it.

A cell has two operations of its kind, each followed by a norm and an activation. A generator is one encoding cell, some
residual cells (9 make the paper's N = 11) and one decoding cell; a discriminator is two encoding cells. The paper gives
shapes at the ends alone: 256x256x3, then 64x64xH, then 256x256x3. What follows from that, and what it leaves open:

- Operations of e cells halve the sides, those of r cells keep them, those of d cells double them. Channels go 3, H/2, H
  and back, as CycleGAN's do; half of an odd H is rounded up.
- Pooling and interpolation have no weights and keep channels, so a 1x1 convolution changes them: behind the pooling, as
  in the authors' code, and before the interpolation, where it costs a quarter and gives the same.
- The last operation makes the image: a tanh is its activation and no norm precedes it. A discriminator's last makes
  the logits and nothing follows. No other norm is left out, while a PatchGAN has none behind its first convolution.
- An r cell adds its input behind the second norm. There is no activation behind that, as in CycleGAN's blocks: else the
  features could only grow. Pictures are reflected at the borders there, and padded with zeros in e cells.
- A discriminator has C, 2C, 4C channels and then its logits, one for 16x16 pixels.

The authors' published code differs from that. `space="code"` has its networks: S^e without the 7x7 convolution; an
operation of S^r before the encoding (3 to H/4 channels) and one behind the decoding (to the image) that are searched
too; discriminators of three operations of S^e and two of S^r, the first without a norm and all under spectral norm,
which its hand-made discriminators do not have. Its borders are not copied: it reflects one pixel and pads the rest with
zeros, and an S^r operation of a discriminator shrinks the picture by two pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor, nn

from velogan.networks.layers import DilatedConv2d, NormName, norm_layer
from velogan.types import ForwardKind

Kind = Literal["e", "r", "d"]
Space = Literal["paper", "code"]

_SETS: dict[Kind, tuple[str, ...]] = {
    "e": ("max_pool", "avg_pool", "conv3", "conv4", "conv5", "conv7", "dilated3", "dilated5"),
    "r": ("conv3", "conv5", "conv7", "dilated3", "dilated5"),
    "d": ("nearest", "bilinear", "transposed3"),
}
"""S^e, S^r and S^d of the paper."""

NETWORKS = 2
"""Generators, and discriminators, that one search is about."""


def choices(kind: Kind, space: Space = "paper") -> tuple[str, ...]:
    """The operations that a cell of this kind chooses from."""
    return tuple(name for name in _SETS[kind] if (kind, space, name) != ("e", "code", "conv7"))


def generator_kinds(blocks: int, space: Space = "paper") -> tuple[Kind, ...]:
    """The kinds of a generator's operations, in order; `blocks` are its residual cells, N - 2."""
    residual: tuple[Kind, ...] = ("r", "r") * blocks
    cells: tuple[Kind, ...] = ("e", "e", *residual, "d", "d")
    return cells if space == "paper" else ("r", *cells, "r")


def discriminator_kinds(space: Space = "paper") -> tuple[Kind, ...]:
    """The kinds of a discriminator's operations, in order."""
    return ("e",) * 4 if space == "paper" else ("e", "e", "e", "r", "r")


class Count(NamedTuple):
    """How many networks a search chooses from."""

    generator: int
    discriminator: int
    total: int


def count(*, blocks: int = 9, space: Space = "paper") -> Count:
    """The sizes of the search space: of one generator, of one discriminator, and of both of each together."""
    generator, discriminator = (
        math.prod(len(choices(kind, space)) for kind in kinds)
        for kinds in (generator_kinds(blocks, space), discriminator_kinds(space))
    )
    return Count(generator, discriminator, (generator * discriminator) ** NETWORKS)


def check_operations(operations: Sequence[str], kinds: Sequence[Kind], *, space: Space, network: str) -> None:
    """ValueError where `operations` are not one of each of `kinds`; `network` is what they are of, in words."""
    if len(operations) != len(kinds):
        raise ValueError(f"{len(operations)} operations, but {network} has {len(kinds)}: name so many")
    for place, (name, kind) in enumerate(zip(operations, kinds), start=1):
        if name not in (known := choices(kind, space)):
            raise ValueError(
                f"{name!r:.40}, number {place} of the operations, is not of a cell of kind {kind}: choose one of "
                f"{', '.join(known)}"
            )


def refuse_operations(operations: Sequence[str], space: Space, *, network: str) -> None:
    """ValueError where a `network` that is not of cells is given what only cells have."""
    if operations or space != "paper":
        given = f"operations={','.join(operations):.40}" if operations else f"space={space}"
        raise ValueError(f"{given} is for cells, not {network}: set network=cells")


def blocks_of(operations: Sequence[str], space: Space = "paper") -> int:
    """The residual cells of a generator with these operations; ValueError where there is no such generator."""
    rest = len(operations) - len(generator_kinds(0, space))
    if rest < 0 or rest % 2:
        raise ValueError(
            f"{len(operations)} operations make no generator: an e cell, r cells and a d cell have two each"
        )
    return rest // 2


def enlarges(operations: Sequence[str], space: Space = "paper") -> bool:
    """Whether a generator makes its picture at a quarter of the size, by 1x1 convolutions, and enlarges it.

    In the authors' space a convolution at full size follows.
    """
    return space == "paper" and set(operations[-2:]) <= {"nearest", "bilinear"}


_HAND_MADE: dict[Kind, str] = {"e": "conv3", "r": "conv3", "d": "transposed3"}


def hand_made(kinds: Sequence[Kind], *, space: Space = "paper", discriminator: bool = False) -> tuple[str, ...]:
    """The operations that CycleGAN's own networks have at these places."""
    names = [("conv4" if discriminator and kind == "e" else _HAND_MADE[kind]) for kind in kinds]
    if space == "code" and not discriminator:
        names[0] = names[-1] = "conv7"
    return tuple(names)


class Slot(NamedTuple):
    """A place for one operation: the kind of its cell, and the channels that go in and come out."""

    kind: Kind
    c_in: int
    c_out: int
    bias: bool
    space: Space


Fill = Callable[[Slot], nn.Module]
"""Makes what stands in a slot: an operation, or a mixture of all."""


def fill_with(operations: Iterable[str]) -> Fill:
    """Puts these operations into the slots, in order."""
    names = iter(operations)
    return lambda slot: operation(next(names), slot)


class Geometry(NamedTuple):
    """Of a convolution: its taps lie `dilation` apart, and the first of them `before` pixels before the output's."""

    kernel: int
    dilation: int
    before: int


GEOMETRY = {
    "conv3": Geometry(3, 1, 1),
    "conv4": Geometry(4, 1, 1),
    "conv5": Geometry(5, 1, 2),
    "conv7": Geometry(7, 1, 3),
    "dilated3": Geometry(3, 2, 2),
    "dilated5": Geometry(5, 2, 4),
}


def operation(name: str, slot: Slot) -> nn.Module:
    """One operation: `(B, c_in, H, W)` to `(B, c_out, ...)` with sides halved (kind e), kept (r) or doubled (d)."""
    kind, c_in, c_out, bias, _ = slot
    if name in GEOMETRY:
        kernel, dilation, before = GEOMETRY[name]
        make = DilatedConv2d if dilation > 1 else nn.Conv2d
        if kind == "e":
            return make(c_in, c_out, kernel, stride=2, padding=before, dilation=dilation, bias=bias)
        convolution = make(c_in, c_out, kernel, dilation=dilation, bias=bias)
        return nn.Sequential(nn.ReflectionPad2d(before), convolution)
    if name == "transposed3":
        return nn.ConvTranspose2d(c_in, c_out, 3, stride=2, padding=1, output_padding=1, bias=bias)
    point = nn.Conv2d(c_in, c_out, 1, bias=bias)
    match name:
        case "max_pool":
            return nn.Sequential(nn.MaxPool2d(2), point)
        case "avg_pool":
            return nn.Sequential(nn.AvgPool2d(2), point)
        case "nearest":
            return nn.Sequential(point, nn.Upsample(scale_factor=2))
        case "bilinear":
            return nn.Sequential(point, nn.Upsample(scale_factor=2, mode="bilinear"))
    raise ValueError(f"{name!r:.40} is no operation")


class ResidualCell(nn.Module):
    """`x + cell(x)`: two operations with norms, and one ReLU between."""

    forward_kind: ClassVar[ForwardKind] = "residual"

    def __init__(self, cell: nn.Sequential):
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        return x + self.cell(x)


STAGE = {"stem": 0, "e": 0, "d": 2, "head": 2}
"""The part of a generator that a layer belongs to, by its name: encoder, or decoder; residual cells are between."""


def generator_layers(
    fill: Fill, *, hidden: int, blocks: int, norm: NormName, space: Space, c_in: int, c_out: int
) -> nn.Sequential:
    """The cells of a generator, `(B, c_in, H, W)` to `(B, c_out, H, W)` in [-1, 1].

    Encodings, behind the e cell, are `(B, hidden, H/4, W/4)`.
    """
    make_norm, bias = norm_layer(norm), norm in ("instance", "none")
    half, quarter = -(-hidden // 2), -(-hidden // 4)

    def unit(kind: Kind, c_in: int, c_out: int) -> list[nn.Module]:
        return [fill(Slot(kind, c_in, c_out, bias, space)), make_norm(c_out), nn.ReLU()]

    def last(kind: Kind, c_in: int) -> list[nn.Module]:
        return [fill(Slot(kind, c_in, c_out, True, space)), nn.Tanh()]

    net, code = nn.Sequential(), space == "code"
    if code:
        net.add_module("stem", nn.Sequential(*unit("r", c_in, quarter)))
    net.add_module("e", nn.Sequential(*unit("e", quarter if code else c_in, half), *unit("e", half, hidden)))
    for number in range(1, blocks + 1):
        *layers, _ = [*unit("r", hidden, hidden), *unit("r", hidden, hidden)]
        net.add_module(f"r{number}", ResidualCell(nn.Sequential(*layers)))
    behind = unit("d", hidden, half) + (unit("d", half, quarter) if code else last("d", half))
    net.add_module("d", nn.Sequential(*behind))
    if code:
        net.add_module("head", nn.Sequential(*last("r", quarter)))
    return net


def discriminator_layers(
    fill: Fill, *, channels: int, norm: NormName, space: Space, in_channels: int, first: int = 0
) -> nn.Sequential:
    """The operations of a discriminator from number `first` on, `(B, in_channels, H, W)` to logits."""
    make_norm, bias = norm_layer(norm), norm in ("instance", "none")
    *inner, end = discriminator_kinds(space)
    layers, c_in = [], in_channels
    for number, kind in list(enumerate(inner))[first:]:
        c_out = channels * 2**number
        layers.append(fill(Slot(kind, c_in, c_out, bias or (space == "code" and number == 0), space)))
        layers += [nn.LeakyReLU(0.2)] if space == "code" and number == 0 else [make_norm(c_out), nn.LeakyReLU(0.2)]
        c_in = c_out
    return nn.Sequential(*layers, fill(Slot(end, c_in, 1, True, space)))
