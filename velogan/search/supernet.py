"""Supernets: networks of cells in which every operation is a mixture of all that could stand in its place.

"CycleGANAS" (An and Joo 2023, section 3.2): `sum_o softmax(alpha)_o o(x)`. The mixture stands in the place of the
operation alone, so that one norm and one activation follow it. Nothing nonlinear is between the convolutions of a
mixture and their sum, which makes them one convolution with the weighted sum of their kernels. `merged` mixtures
compute that: the same up to rounding, with less work and memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from velogan.networks.build import Networks
from velogan.networks.cells import CONVOLUTION_GEOMETRY, FillSlot, Kind, Slot, build_operation, operation_names
from velogan.networks.discriminators import DiscriminatorConfig, build_discriminator, build_encoding_discriminator
from velogan.networks.generators import GeneratorConfig, build_generator
from velogan.networks.layers import contiguous_for_dilated_grad
from velogan.types import Composed, ForwardKind

Convolve = Callable[..., Tensor]

START = 1e-3
"""Deviation of `alpha` at the start, where all operations should count alike. The paper does not say; as in DARTS."""


class Supernets(Networks):
    """A `methods.base.NetworkFactory` that builds supernets instead of networks of cells."""

    def __init__(self, *, merged: bool = True):
        self._fill: FillSlot = lambda slot: MixedOp(slot, merged=merged)

    def generator(self, config: GeneratorConfig, **channels: int) -> nn.Module:  # pyright: ignore[reportIncompatibleMethodOverride]
        return build_generator(config, **channels, fill=self._fill)

    def discriminator(self, config: DiscriminatorConfig, **channels: int) -> nn.Module:  # pyright: ignore[reportIncompatibleMethodOverride]
        return build_discriminator(config, **channels, fill=self._fill)

    def encoding_discriminator(self, config: DiscriminatorConfig, *, in_channels: int) -> nn.Module:  # pyright: ignore[reportIncompatibleMethodOverride]
        return build_encoding_discriminator(config, in_channels=in_channels, fill=self._fill)


class MixedOp(nn.Module):
    """The mixture of all operations that may stand in `slot`, weighted by the softmax of `alpha`.

    `convolve`, in `forward`, is what computes `F.conv2d` of the summed kernels of kind r.
    """

    forward_kind: ClassVar[ForwardKind] = "mixture"

    def __init__(self, slot: Slot, *, merged: bool = True):
        super().__init__()
        self.kind: Kind = slot.kind
        self.merged = merged
        self.candidates = nn.ModuleDict(
            {name: build_operation(name, slot) for name in operation_names(slot.kind, slot.space)}
        )
        self.alpha = nn.Parameter(START * torch.randn(len(self.candidates)))
        self.architecture: tuple[Architecture] | None = None  # in a tuple, so that it is not registered here

    @property
    def weights(self) -> Tensor:
        """The share of each operation, in the order of `candidates`."""
        return self.alpha.softmax(0)

    def forward(self, x: Tensor, *, convolve: Convolve = F.conv2d) -> Tensor:
        if self.kind == "e" and any(side % 2 for side in x.shape[2:]):
            raise ValueError(f"sides of {x.shape[3]}x{x.shape[2]} cannot be halved by every operation of a search")
        if not self.merged:
            return self.plain(x)
        layers = {name: _layer(net) for name, net in self.candidates.items()}
        shares = dict(zip(self.candidates, self.weights.unbind()))
        return _kept(x, layers, shares, convolve) if self.kind == "r" else _MERGED[self.kind](x, layers, shares)

    def plain(self, x: Tensor) -> Tensor:
        """The sum as the paper writes it, every operation by itself."""
        total, *rest = (share * net(x) for share, net in zip(self.weights, self.candidates.values()))
        for one in rest:
            total = total + one
        return total


class Architecture(nn.Module):
    """The `alpha` of all mixtures of a supernet, as a network of its own: for phases and optimizer rules of its own."""

    def __init__(self, alphas: Sequence[nn.Parameter]):
        super().__init__()
        self.alpha = nn.ParameterList(alphas)

    def map_parts(self, other: Callable[[nn.Module], nn.Module]) -> Architecture:
        """Itself: there is nothing to be computed in another way. See `types.Composed`."""
        return self


def detach_arch_parameters(net: nn.Module) -> Architecture:
    """Takes the architecture weights out of a supernet, which uses them on but does not count them as its own.

    A copy of the supernet then has a copy of them that nothing updates, until `attach_arch_parameters`.
    """
    alphas = []
    for mixed in mixtures(net).values():
        alphas.append(mixed.alpha)
        del mixed.alpha
    made = Architecture(alphas)
    attach_arch_parameters(net, made)
    return made


def attach_arch_parameters(net: nn.Module, architecture: Architecture) -> None:
    """Lets a supernet whose architecture weights were taken use these instead."""
    for number, mixed in enumerate(mixtures(net).values()):
        mixed.architecture = (architecture,)
        object.__setattr__(mixed, "alpha", architecture.alpha[number])  # not registered


class WithArchitecture(nn.Module):
    """A supernet, and its architecture weights, which were taken, as one network: for a file that holds both."""

    def __init__(self, net: nn.Module, architectures: Sequence[nn.Module] | None = None):
        super().__init__()
        self.net = net
        taken = [mixed.architecture for mixed in mixtures(net).values() if mixed.architecture is not None]
        found = dict.fromkeys(one for (one,) in taken) if architectures is None else architectures
        self.architectures = nn.ModuleList(found)

    @property
    def multiple(self) -> int:
        """As `Generator` has it."""
        return self.net.multiple  # pyright: ignore[reportReturnType]

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def map_parts(self, other: Callable[[nn.Module], nn.Module]) -> WithArchitecture:
        """The same with its network computed by `other`."""
        faster = self.net.map_parts(other) if isinstance(self.net, Composed) else other(self.net)
        return WithArchitecture(faster, list(self.architectures))


def mixtures(net: nn.Module) -> dict[str, MixedOp]:
    """The mixtures of a supernet by name, in the order of a network's operations."""
    return {name: module for name, module in net.named_modules() if isinstance(module, MixedOp)}


def derive(net: nn.Module) -> tuple[str, ...]:
    """The operation with the largest weight in each mixture."""
    return tuple(list(mixed.candidates)[int(mixed.alpha.argmax())] for mixed in mixtures(net).values())


_Layer = nn.Conv2d | nn.ConvTranspose2d
_Layers = Mapping[str, _Layer]
_Shares = Mapping[str, Tensor]


def _layer(net: nn.Module) -> _Layer:
    """The convolution of a candidate."""
    return next(layer for layer in net.modules() if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)))


def _halved(x: Tensor, layers: _Layers, shares: _Shares) -> Tensor:
    """Kind e. The dilated 5x5 sees every second pixel only; the average of 2x2 pixels is a convolution too."""
    names = [name for name in layers if name in _DENSE]
    reach = max(CONVOLUTION_GEOMETRY[name].before for name in names)
    taps = [_Kernel(layers[name].weight, shares[name], _place(name, reach)) for name in names]
    taps.append(_Kernel(layers["avg_pool"].weight, shares["avg_pool"] / 4, slice(reach, reach + 2)))
    dense = F.conv2d(x, _summed(taps, reach), _bias(layers, shares, but="max_pool"), stride=2, padding=reach)
    far = F.conv2d(x[:, :, ::2, ::2], shares["dilated5"] * layers["dilated5"].weight, padding=2)
    return dense + far + _point(F.max_pool2d(x, 2), "max_pool", layers, shares)


def _kept(x: Tensor, layers: _Layers, shares: _Shares, convolve: Convolve) -> Tensor:
    """Kind r."""
    reach, bias = CONVOLUTION_GEOMETRY["dilated5"].before, _bias(layers, shares)
    x = F.pad(x, (reach,) * 4, mode="reflect")
    inner = CONVOLUTION_GEOMETRY["conv7"].before
    names = [name for name in layers if CONVOLUTION_GEOMETRY[name].before <= inner]
    taps = [_Kernel(layers[name].weight, shares[name], _place(name, inner)) for name in names]
    near = convolve(x[:, :, 1:-1, 1:-1], _summed(taps, inner), bias)
    return near + convolve(*contiguous_for_dilated_grad(x, shares["dilated5"] * layers["dilated5"].weight), dilation=2)


def _doubled(x: Tensor, layers: _Layers, shares: _Shares) -> Tensor:
    """Kind d. Nearest pixels are two taps of the transposed convolution."""
    near = _Kernel(layers["nearest"].weight.transpose(0, 1), shares["nearest"], slice(1, 3))
    taps = [_Kernel(layers["transposed3"].weight, shares["transposed3"], slice(0, 3)), near]
    bias = _bias(layers, shares, but="bilinear")
    sharp = F.conv_transpose2d(x, _summed(taps, 1), bias, stride=2, padding=1, output_padding=1)
    return sharp + F.interpolate(_point(x, "bilinear", layers, shares), scale_factor=2, mode="bilinear")


_MERGED: dict[Kind, Callable[[Tensor, _Layers, _Shares], Tensor]] = {"e": _halved, "d": _doubled}
_DENSE = tuple(name for name in CONVOLUTION_GEOMETRY if name != "dilated5")


def _place(name: str, reach: int) -> slice:
    """Where a kernel's taps lie in one that reaches `reach` pixels to each side."""
    taps, dilation, before = CONVOLUTION_GEOMETRY[name]
    return slice(reach - before, reach - before + (taps - 1) * dilation + 1, dilation)


def _point(x: Tensor, name: str, layers: _Layers, shares: _Shares) -> Tensor:
    """A 1x1 convolution with its share in it, where the picture or the result is small."""
    layer, share = layers[name], shares[name]
    return F.conv2d(x, share * layer.weight, None if layer.bias is None else share * layer.bias)


def _bias(layers: _Layers, shares: _Shares, *, but: str = "") -> Tensor | None:
    """The sum of all biases but one, which is added elsewhere."""
    found = [shares[name] * layer.bias for name, layer in layers.items() if name != but and layer.bias is not None]
    return torch.stack(found).sum(0) if found else None


class _Kernel(NamedTuple):
    """A kernel, its share, and its rows and columns in the sum; one that is smaller than these is repeated."""

    weight: Tensor
    share: Tensor
    place: slice


def _summed(taps: Sequence[_Kernel], reach: int) -> Tensor:
    """The sum of kernels, `(c_out, c_in, 2 reach + 1, 2 reach + 1)`."""
    shares = torch.stack([one.share for one in taps])
    places = [one.place for one in taps]
    return _Summed.apply(places, 2 * reach + 1, shares, *(one.weight for one in taps))  # pyright: ignore[reportReturnType]


class _Summed(torch.autograd.Function):
    """Written into one tensor: slices under autograd would copy the whole sum for each kernel, both ways."""

    @staticmethod
    def forward(ctx, places: list[slice], side: int, shares: Tensor, *weights: Tensor):
        ctx.save_for_backward(shares, *weights)
        ctx.places = places
        c_out, c_in = weights[0].shape[:2]
        total = weights[0].new_zeros(c_out, side, side, c_in).permute(0, 3, 1, 2)  # as most weights lie
        for place, share, weight in zip(places, shares, weights):
            total[:, :, place, place].addcmul_(weight, share)
        return total

    @staticmethod
    def backward(ctx, *grads: Tensor):
        shares, *weights = ctx.saved_tensors
        parts = [grads[0][:, :, place, place] for place in ctx.places]
        of_shares = torch.stack([(part * weight).sum() for part, weight in zip(parts, weights)])
        of_weights = [(part * share).sum_to_size(weight.shape) for part, share, weight in zip(parts, shares, weights)]
        return None, None, of_shares, *of_weights
