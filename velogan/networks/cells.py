"""Networks of cells: the search space of "CycleGANAS" (An and Joo 2023, section 3.2), and networks chosen from it.

A cell has two operations of its kind, each followed by a norm and an activation. A generator has one encoding cell (e),
residual cells (r; 9 for the paper's N = 11) and one decoding cell (d); a discriminator has two encoding cells. The
paper gives only the shapes 256x256x3, 64x64xH and 256x256x3. The rest follows from these, or is chosen here:

- An operation halves the sides in an e cell, preserves them in an r cell, and doubles them in a d cell. Channels go 3,
  H/2, H and back, as CycleGAN's do; half of an odd H is rounded up.
- Pooling and interpolation preserve channels, so a 1x1 convolution changes them: after pooling, as in the authors'
  code, and before interpolation, where it costs a quarter and has the same result.
- A generator's last operation is followed only by tanh, a discriminator's by nothing. All other operations have norms,
  unlike the first convolution of a PatchGAN.
- An r cell adds its input after the second norm, without another activation, as CycleGAN's blocks do: else features
  could only grow. r cells have reflection padding, e cells zero padding.
- A discriminator has C, 2C, 4C channels, then one logit per 16x16 pixels.

The authors' published code differs: `space="code"` builds its networks. e cells cannot choose the 7x7 convolution;
generators have one more r operation before the encoding (3 to H/4 channels) and one after the decoding (to the image);
discriminators have three e operations and two r operations, the first without a norm, and all with spectral norm,
unlike that code's discriminators without cells. The code's padding is not copied: it reflects one pixel and pads the
rest with zeros, and an r operation of a discriminator removes two pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor, nn

from velogan.networks.layers import DilatedConv2d, NormName, norm_layer
from velogan.types import ForwardKind

Kind = Literal["e", "r", "d"]
Space = Literal["paper", "code"]

_OPERATIONS: dict[Kind, tuple[str, ...]] = {
    "e": ("max_pool", "avg_pool", "conv3", "conv4", "conv5", "conv7", "dilated3", "dilated5"),
    "r": ("conv3", "conv5", "conv7", "dilated3", "dilated5"),
    "d": ("nearest", "bilinear", "transposed3"),
}
"""Candidate operations by kind of cell: S^e, S^r and S^d of the paper."""


def operation_names(kind: Kind, space: Space = "paper") -> tuple[str, ...]:
    """Return the names of the candidate operations in a cell of this kind."""
    return tuple(name for name in _OPERATIONS[kind] if (kind, space, name) != ("e", "code", "conv7"))


def generator_kinds(blocks: int, space: Space = "paper") -> tuple[Kind, ...]:
    """Return the kinds of a generator's operations, in order; `blocks`: number of residual cells, N - 2."""
    residual: tuple[Kind, ...] = ("r", "r") * blocks
    cells: tuple[Kind, ...] = ("e", "e", *residual, "d", "d")
    return cells if space == "paper" else ("r", *cells, "r")


def discriminator_kinds(space: Space = "paper") -> tuple[Kind, ...]:
    """Return the kinds of a discriminator's operations, in order."""
    return ("e",) * 4 if space == "paper" else ("e", "e", "e", "r", "r")


def check_operations(operations: Sequence[str], kinds: Sequence[Kind], *, space: Space, network: str) -> None:
    """Raise ValueError, which names `network`, unless each of `operations` is a candidate of its kind in `kinds`."""
    if len(operations) != len(kinds):
        raise ValueError(f"{len(operations)} operations, but {network} has {len(kinds)}: name {len(kinds)}")
    for position, (name, kind) in enumerate(zip(operations, kinds), start=1):
        if name not in (known := operation_names(kind, space)):
            raise ValueError(
                f"{name!r:.40}, number {position} of the operations, is not of a cell of kind {kind}: choose one of "
                f"{', '.join(known)}"
            )


def reject_operations(operations: Sequence[str], space: Space, *, network: str) -> None:
    """Raise ValueError if `operations` or `space` are set for a `network` without cells."""
    if operations or space != "paper":
        setting = f"operations={','.join(operations):.40}" if operations else f"space={space}"
        raise ValueError(f"{setting} is for cells, not {network}: set network=cells")


def count_blocks(operations: Sequence[str], space: Space = "paper") -> int:
    """Return the number of residual cells of a generator with these operations. Raises ValueError if no number fits."""
    rest = len(operations) - len(generator_kinds(0, space))
    if rest < 0 or rest % 2:
        raise ValueError(
            f"{len(operations)} operations do not make a generator: an e cell, r cells and a d cell have two each"
        )
    return rest // 2


def default_operations(
    kinds: Sequence[Kind], *, space: Space = "paper", is_discriminator: bool = False
) -> tuple[str, ...]:
    """Return the operation for each of `kinds` with which the network resembles CycleGAN's."""
    by_kind = {"e": "conv4" if is_discriminator else "conv3", "r": "conv3", "d": "transposed3"}
    names = [by_kind[kind] for kind in kinds]
    if space == "code" and not is_discriminator:
        names[0] = names[-1] = "conv7"
    return tuple(names)


class Slot(NamedTuple):
    """A position for one operation: the kind of its cell, its channels, whether it has a bias, and its search space."""

    kind: Kind
    c_in: int
    c_out: int
    bias: bool
    space: Space


FillSlot = Callable[[Slot], nn.Module]
"""Builds the module of a slot: an operation, or a mixed operation of all candidates."""


def fill_with(operations: Iterable[str]) -> FillSlot:
    """Return a function that builds the next of `operations` at each call."""
    names = iter(operations)
    return lambda slot: build_operation(next(names), slot)


class ConvolutionGeometry(NamedTuple):
    """Kernel size and dilation of a convolution, and its `padding` in pixels at the top and left."""

    kernel: int
    dilation: int
    padding: int


CONVOLUTION_GEOMETRY = {
    "conv3": ConvolutionGeometry(3, 1, 1),
    "conv4": ConvolutionGeometry(4, 1, 1),
    "conv5": ConvolutionGeometry(5, 1, 2),
    "conv7": ConvolutionGeometry(7, 1, 3),
    "dilated3": ConvolutionGeometry(3, 2, 2),
    "dilated5": ConvolutionGeometry(5, 2, 4),
}


def build_operation(name: str, slot: Slot) -> nn.Module:
    """Build an operation: `(B, c_in, H, W)` to `(B, c_out, ...)`; e halves the sides, r keeps them, d doubles them."""
    kind, c_in, c_out, bias, _ = slot
    if name in CONVOLUTION_GEOMETRY:
        kernel, dilation, padding = CONVOLUTION_GEOMETRY[name]
        convolution_class = DilatedConv2d if dilation > 1 else nn.Conv2d
        if kind == "e":
            return convolution_class(c_in, c_out, kernel, stride=2, padding=padding, dilation=dilation, bias=bias)
        convolution = convolution_class(c_in, c_out, kernel, dilation=dilation, bias=bias)
        return nn.Sequential(nn.ReflectionPad2d(padding), convolution)
    if name == "transposed3":
        return nn.ConvTranspose2d(c_in, c_out, 3, stride=2, padding=1, output_padding=1, bias=bias)
    pointwise = nn.Conv2d(c_in, c_out, 1, bias=bias)
    match name:
        case "max_pool":
            return nn.Sequential(nn.MaxPool2d(2), pointwise)
        case "avg_pool":
            return nn.Sequential(nn.AvgPool2d(2), pointwise)
        case "nearest":
            return nn.Sequential(pointwise, nn.Upsample(scale_factor=2))
        case "bilinear":
            return nn.Sequential(pointwise, nn.Upsample(scale_factor=2, mode="bilinear"))
    raise ValueError(f"{name!r:.40} is not a valid operation")


class ResidualCell(nn.Module):
    """A residual cell, `x + cell(x)`: two operations with norms, and a ReLU between them."""

    forward_kind: ClassVar[ForwardKind] = "residual"

    def __init__(self, cell: nn.Sequential):
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        return x + self.cell(x)


STAGE_INDEX = {"stem": 0, "e": 0, "d": 2, "head": 2}
"""Index in `Stages` of the stage that contains a layer, by the layer's name; residual cells are in stage 1."""


def generator_layers(
    fill: FillSlot, *, hidden: int, blocks: int, norm: NormName, space: Space, c_in: int, c_out: int
) -> nn.Sequential:
    """Build the cells of a generator, `(B, c_in, H, W)` to `(B, c_out, H, W)` in [-1, 1].

    Encodings, the output of the e cell, are `(B, hidden, H/4, W/4)`.
    """
    make_norm, bias = norm_layer(norm), norm in ("instance", "none")
    half, quarter = -(-hidden // 2), -(-hidden // 4)

    def build_unit(kind: Kind, c_in: int, c_out: int) -> list[nn.Module]:
        return [fill(Slot(kind, c_in, c_out, bias, space)), make_norm(c_out), nn.ReLU()]

    def build_last(kind: Kind, c_in: int) -> list[nn.Module]:
        return [fill(Slot(kind, c_in, c_out, True, space)), nn.Tanh()]

    net, is_code = nn.Sequential(), space == "code"
    if is_code:
        net.add_module("stem", nn.Sequential(*build_unit("r", c_in, quarter)))
    c_in = quarter if is_code else c_in
    net.add_module("e", nn.Sequential(*build_unit("e", c_in, half), *build_unit("e", half, hidden)))
    for number in range(1, blocks + 1):
        *layers, _ = build_unit("r", hidden, hidden) + build_unit("r", hidden, hidden)
        net.add_module(f"r{number}", ResidualCell(nn.Sequential(*layers)))
    first = build_unit("d", hidden, half)
    second = build_unit("d", half, quarter) if is_code else build_last("d", half)
    net.add_module("d", nn.Sequential(*first, *second))
    if is_code:
        net.add_module("head", nn.Sequential(*build_last("r", quarter)))
    return net


def discriminator_layers(
    fill: FillSlot, *, channels: int, norm: NormName, space: Space, in_channels: int, first: int = 0
) -> nn.Sequential:
    """Build a discriminator's operations from index `first` on, `(B, in_channels, H, W)` to logits `(B, 1, h, w)`."""
    make_norm, bias = norm_layer(norm), norm in ("instance", "none")
    *inner, last = discriminator_kinds(space)
    layers, c_in = [], in_channels
    for number, kind in list(enumerate(inner))[first:]:
        c_out = channels * 2**number
        layers.append(fill(Slot(kind, c_in, c_out, bias or (space == "code" and number == 0), space)))
        layers += [nn.LeakyReLU(0.2)] if space == "code" and number == 0 else [make_norm(c_out), nn.LeakyReLU(0.2)]
        c_in = c_out
    return nn.Sequential(*layers, fill(Slot(last, c_in, 1, True, space)))
