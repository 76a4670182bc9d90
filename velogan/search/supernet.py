"""Supernets: networks of cells in which every operation is a mixed operation of all candidates.

"CycleGANAS" (An and Joo 2023, section 3.2): `sum_o softmax(alpha)_o o(x)`. A mixed operation replaces only the
operation, so that one norm and one activation follow it. As nothing nonlinear is between its convolutions and their
sum, they are computed as one convolution with the weighted sum of their kernels: equal up to rounding, with less work
and memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from velogan.networks.build import NetworkFactory
from velogan.networks.cells import CONVOLUTION_GEOMETRY, Kind, Slot, build_operation, operation_names
from velogan.networks.discriminators import DiscriminatorConfig, build_discriminator, build_encoding_discriminator
from velogan.networks.generators import GeneratorConfig, build_generator
from velogan.networks.layers import contiguous_for_dilated_grad
from velogan.types import Composed, ForwardKind

Convolve = Callable[..., Tensor]

ALPHA_DEVIATION = 1e-3
"""Standard deviation of the initial `alpha`, so that all softmax weights are about equal; as in DARTS."""


def is_searched(config: GeneratorConfig | DiscriminatorConfig) -> bool:
    """Return whether a search chooses the operations of this network: it has cells without configured operations."""
    return config.network == "cells" and not config.operations


class SupernetFactory(NetworkFactory):
    """Builds supernets for networks whose operations are searched."""

    def generator(self, config: GeneratorConfig, *, in_channels: int = 3, out_channels: int = 3) -> nn.Module:
        fill = MixedOp if is_searched(config) else None
        return build_generator(config, in_channels=in_channels, out_channels=out_channels, fill=fill)

    def discriminator(self, config: DiscriminatorConfig, *, in_channels: int) -> nn.Module:
        return build_discriminator(config, in_channels=in_channels, fill=MixedOp if is_searched(config) else None)

    def encoding_discriminator(self, config: DiscriminatorConfig, *, in_channels: int) -> nn.Module:
        fill = MixedOp if is_searched(config) else None
        return build_encoding_discriminator(config, in_channels=in_channels, fill=fill)


class MixedOp(nn.Module):
    """A mixed operation: the sum of all candidates for `slot`, weighted by the softmax of `alpha`.

    `convolve`, an argument of `forward`, replaces `F.conv2d` if the kind is r.
    """

    forward_kind: ClassVar[ForwardKind] = "mixture"

    def __init__(self, slot: Slot):
        super().__init__()
        self.kind: Kind = slot.kind
        self.candidates = nn.ModuleDict(
            {name: build_operation(name, slot) for name in operation_names(slot.kind, slot.space)}
        )
        self.alpha = nn.Parameter(ALPHA_DEVIATION * torch.randn(len(self.candidates)))
        self.architecture: tuple[ArchitectureWeights] | None = None  # in a tuple, so that it is not registered here

    @property
    def shares(self) -> Tensor:
        """Softmax of `alpha`, in the order of `candidates`."""
        return self.alpha.softmax(0)

    def forward(self, x: Tensor, *, convolve: Convolve = F.conv2d) -> Tensor:
        if self.kind == "e" and any(side % 2 for side in x.shape[2:]):
            raise ValueError(f"sides of {x.shape[3]}x{x.shape[2]} cannot be halved by every operation of a search")
        layers = {
            name: next(layer for layer in operation.modules() if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)))
            for name, operation in self.candidates.items()
        }
        shares = dict(zip(self.candidates, self.shares.unbind()))
        match self.kind:
            case "e":
                return _downsample(x, layers, shares)
            case "r":
                return _preserve_size(x, layers, shares, convolve)
            case "d":
                return _upsample(x, layers, shares)


class ArchitectureWeights(nn.Module):
    """The `alpha` of all mixed operations of a supernet, as a separate network with its own optimizer rules."""

    def __init__(self, alphas: Sequence[nn.Parameter]):
        super().__init__()
        self.alpha = nn.ParameterList(alphas)

    def map_parts(self, function: Callable[[nn.Module], nn.Module]) -> ArchitectureWeights:
        """Return self: there is nothing to accelerate. See `types.Composed`."""
        return self


def split_arch_parameters(net: nn.Module) -> ArchitectureWeights:
    """Move the architecture weights out of a supernet, which still uses them but no longer has them as parameters.

    A copy of the supernet uses a copy of them that is not updated, until `attach_arch_parameters`.
    """
    alphas = []
    for mixed in find_mixed_ops(net).values():
        alphas.append(mixed.alpha)
        del mixed.alpha
    architecture = ArchitectureWeights(alphas)
    attach_arch_parameters(net, architecture)
    return architecture


def attach_arch_parameters(net: nn.Module, architecture: ArchitectureWeights) -> None:
    """Make a supernet use these architecture weights in place of its own."""
    for number, mixed in enumerate(find_mixed_ops(net).values()):
        mixed.architecture = (architecture,)
        object.__setattr__(mixed, "alpha", architecture.alpha[number])  # not registered


class SupernetWithArchitecture(nn.Module):
    """A supernet and its separate architecture weights as one network, for a file that contains both."""

    def __init__(self, net: nn.Module, architectures: Sequence[nn.Module] | None = None):
        super().__init__()
        self.net = net
        if architectures is None:
            detached = [mixed.architecture for mixed in find_mixed_ops(net).values() if mixed.architecture is not None]
            architectures = list(dict.fromkeys(architecture for (architecture,) in detached))
        self.architectures = nn.ModuleList(architectures)

    @property
    def multiple(self) -> int:
        """The number that image sides must be divisible by."""
        return self.net.multiple  # pyright: ignore[reportReturnType]

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def map_parts(self, function: Callable[[nn.Module], nn.Module]) -> SupernetWithArchitecture:
        """Return the network with `function(part)` in place of the supernet, or of its parts if it is `Composed`."""
        mapped = self.net.map_parts(function) if isinstance(self.net, Composed) else function(self.net)
        return SupernetWithArchitecture(mapped, list(self.architectures))


def find_mixed_ops(net: nn.Module) -> dict[str, MixedOp]:
    """Return the `MixedOp`s of a supernet by name, in the order of a genotype's operations."""
    return {name: module for name, module in net.named_modules() if isinstance(module, MixedOp)}


def derive(net: nn.Module) -> tuple[str, ...]:
    """Return the name of the operation with the largest softmax weight, for each mixed operation."""
    return tuple(list(mixed.candidates)[int(mixed.alpha.argmax())] for mixed in find_mixed_ops(net).values())


_Convolution = nn.Conv2d | nn.ConvTranspose2d
_Layers = Mapping[str, _Convolution]
_Shares = Mapping[str, Tensor]


def _downsample(x: Tensor, layers: _Layers, shares: _Shares) -> Tensor:
    """Compute a `MixedOp` of kind e. Stride 2 makes dilated5 a dense 5x5 on every second pixel; avg_pool is 2x2."""
    names = [name for name in layers if name in CONVOLUTION_GEOMETRY and name != "dilated5"]
    radius = max(CONVOLUTION_GEOMETRY[name].padding for name in names)
    kernels = [_Kernel(layers[name].weight, shares[name], _kernel_slice(name, radius)) for name in names]
    kernels.append(_Kernel(layers["avg_pool"].weight, shares["avg_pool"] / 4, slice(radius, radius + 2)))
    bias = _sum_biases(layers, shares, excluded="max_pool")
    dense = F.conv2d(x, _sum_kernels(kernels, radius), bias, stride=2, padding=radius)
    dilated = F.conv2d(x[:, :, ::2, ::2], shares["dilated5"] * layers["dilated5"].weight, padding=2)
    return dense + dilated + _pointwise(F.max_pool2d(x, 2), "max_pool", layers, shares)


def _preserve_size(x: Tensor, layers: _Layers, shares: _Shares, convolve: Convolve) -> Tensor:
    """Compute a `MixedOp` of kind r: a dilated 5x5 convolution, and one 7x7 convolution with all other kernels."""
    outer, bias = CONVOLUTION_GEOMETRY["dilated5"].padding, _sum_biases(layers, shares)
    x = F.pad(x, (outer,) * 4, mode="reflect")
    radius = CONVOLUTION_GEOMETRY["conv7"].padding
    names = [name for name in layers if CONVOLUTION_GEOMETRY[name].padding <= radius]
    kernels = [_Kernel(layers[name].weight, shares[name], _kernel_slice(name, radius)) for name in names]
    dense = convolve(x[:, :, 1:-1, 1:-1], _sum_kernels(kernels, radius), bias)
    return dense + convolve(*contiguous_for_dilated_grad(x, shares["dilated5"] * layers["dilated5"].weight), dilation=2)


def _upsample(x: Tensor, layers: _Layers, shares: _Shares) -> Tensor:
    """Compute a `MixedOp` of kind d. Nearest-neighbour upsampling is a transposed convolution with a 2x2 kernel."""
    nearest = _Kernel(layers["nearest"].weight.transpose(0, 1), shares["nearest"], slice(1, 3))
    kernels = [_Kernel(layers["transposed3"].weight, shares["transposed3"], slice(0, 3)), nearest]
    bias = _sum_biases(layers, shares, excluded="bilinear")
    transposed = F.conv_transpose2d(x, _sum_kernels(kernels, 1), bias, stride=2, padding=1, output_padding=1)
    return transposed + F.interpolate(_pointwise(x, "bilinear", layers, shares), scale_factor=2, mode="bilinear")


def _kernel_slice(name: str, radius: int) -> slice:
    """Return the rows, which equal the columns, of an operation's weights within a kernel of `radius`."""
    kernel, dilation, padding = CONVOLUTION_GEOMETRY[name]
    return slice(radius - padding, radius - padding + (kernel - 1) * dilation + 1, dilation)


def _pointwise(x: Tensor, name: str, layers: _Layers, shares: _Shares) -> Tensor:
    """Apply the 1x1 convolution of operation `name`, multiplied by its softmax weight."""
    layer, share = layers[name], shares[name]
    return F.conv2d(x, share * layer.weight, None if layer.bias is None else share * layer.bias)


def _sum_biases(layers: _Layers, shares: _Shares, *, excluded: str = "") -> Tensor | None:
    biases = [
        shares[name] * layer.bias for name, layer in layers.items() if name != excluded and layer.bias is not None
    ]
    return torch.stack(biases).sum(0) if biases else None


class _Kernel(NamedTuple):
    """A kernel, its softmax weight, and its rows and columns in the sum, to which a 1x1 kernel is broadcast."""

    weight: Tensor
    share: Tensor
    indices: slice


def _sum_kernels(kernels: Sequence[_Kernel], radius: int) -> Tensor:
    """Return the sum of kernels weighted by their `share`, `(c_out, c_in, 2 radius + 1, 2 radius + 1)`."""
    shares = torch.stack([kernel.share for kernel in kernels])
    indices, weights = [kernel.indices for kernel in kernels], [kernel.weight for kernel in kernels]
    return _SumKernels.apply(indices, 2 * radius + 1, shares, *weights)  # pyright: ignore[reportReturnType]


class _SumKernels(torch.autograd.Function):
    """Sums kernels in place: autograd of slices would copy the whole sum for each kernel, in both passes."""

    @staticmethod
    def forward(ctx, slices: list[slice], side: int, shares: Tensor, *weights: Tensor):
        ctx.save_for_backward(shares, *weights)
        ctx.slices = slices
        c_out, c_in = weights[0].shape[:2]
        total = weights[0].new_zeros(c_out, side, side, c_in).permute(0, 3, 1, 2)  # channels-last, as most weights
        for indices, share, weight in zip(slices, shares, weights):
            total[:, :, indices, indices].addcmul_(weight, share)
        return total

    @staticmethod
    def backward(ctx, *grads: Tensor):
        shares, *weights = ctx.saved_tensors
        parts = [grads[0][:, :, indices, indices] for indices in ctx.slices]
        share_grads = torch.stack([(part * weight).sum() for part, weight in zip(parts, weights)])
        weight_grads = [(part * share).sum_to_size(weight.shape) for part, share, weight in zip(parts, shares, weights)]
        return None, None, share_grads, *weight_grads
