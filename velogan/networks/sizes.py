"""Sizes of generators: parameters, bytes and multiply-accumulates (MACs); and widths that make sizes equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from velogan.networks.generators import GeneratorConfig, build_generator
from velogan.types import Direction

BYTES_PER_WEIGHT = 4
"""Bytes of a float32 weight, and of its gradient."""

SIZE_TOLERANCE = 0.01
"""Maximum relative difference of two sizes that are considered equal."""


@dataclass(frozen=True)
class NetworkSize:
    """The size of one network; `macs`: multiply-accumulates of its convolutions for one image."""

    parameters: int
    macs: int

    @property
    def bytes(self) -> int:
        """Bytes of its weights in float32."""
        return BYTES_PER_WEIGHT * self.parameters


def network_size(
    config: GeneratorConfig, *, in_channels: int = 3, out_channels: int = 3, side: int = 256
) -> NetworkSize:
    """Return the size of a generator, with MACs for an image of `side` x `side`; computed on the meta device."""
    with torch.device("meta"):
        net = build_generator(config, in_channels=in_channels, out_channels=out_channels)
        macs = count_macs(net, torch.empty(1, in_channels, side, side))
    return NetworkSize(count_parameters(net), macs)


def count_parameters(net: nn.Module) -> int:
    """Return the number of weights and biases of a network."""
    return sum(parameter.numel() for parameter in net.parameters())


@torch.no_grad()
def count_macs(net: nn.Module, images: torch.Tensor) -> int:
    """Return the multiply-accumulates of a network's convolutions on `images`, `(B, C, H, W)`.

    Each weight is multiplied once per output pixel, in a transposed convolution once per input pixel. Blurs (about 1 %)
    are not counted.
    """
    macs: list[int] = []

    def record(layer: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        assert isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d))
        pixels = inputs[0] if isinstance(layer, nn.ConvTranspose2d) else output
        macs.append(len(pixels) * pixels.shape[2:].numel() * layer.weight.numel())

    for layer in net.modules():
        if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
            layer.register_forward_hook(record)
    net.eval()(images)
    return sum(macs)


def reference_config(name: str) -> GeneratorConfig:
    """Return the CycleGAN generator that `name` describes: C64 is a ResNet-9 with 64 maps after its first convolution.

    Raises ValueError if `name` is not C followed by a width.
    """
    if not (name[:1] in ("C", "c") and name[1:].isdigit() and 1 <= int(name[1:]) <= 4096):
        raise ValueError(f"--match-size {name:.40}: write C and the width of a ResNet-9, for example C64")
    return GeneratorConfig(channels=int(name[1:]))


def widths_matching(
    generators: Sequence[GeneratorConfig], target: GeneratorConfig, *, channels: Sequence[tuple[int, int]] = ()
) -> tuple[int, ...]:
    """Return the widths at which `generators` match the total size of the same number of `target` generators.

    All widths are equal, as in the paper, if the total then matches within 1 %; else the last widths are larger by one.
    `channels`: for each generator, the numbers of input and output channels. Default: 3 and 3.
    Raises ValueError if no widths match within 1 %.
    """
    channels = list(channels) or [(3, 3)] * len(generators)
    target_bytes = sum(_size_in_bytes(target, in_and_out) for in_and_out in channels)

    def total_bytes(widths: Sequence[int]) -> int:
        return sum(map(_size_in_bytes, generators, channels, widths))

    def relative_error(widths: list[int]) -> float:
        return abs(total_bytes(widths) / target_bytes - 1)

    low = _largest_true(lambda width: total_bytes([width] * len(generators)) <= target_bytes)
    equal_widths = [[width] * len(generators) for width in (max(low, 1), low + 1)]
    best_equal = min(equal_widths, key=relative_error)
    if relative_error(best_equal) <= SIZE_TOLERANCE:
        return tuple(best_equal)
    unequal_widths = [[low] * count + [low + 1] * (len(generators) - count) for count in range(1, len(generators))]
    best = min([best_equal, *unequal_widths] if low else [best_equal], key=relative_error)
    if relative_error(best) > SIZE_TOLERANCE:
        raise ValueError(
            f"--match-size: {target_bytes:,} bytes are between the sizes of these generators at widths {low} and "
            f"{low + 1}, and the nearest differs by {100 * relative_error(best):.1f} %: match a larger size, or set "
            f"--hidden {best[0]}"
        )
    return tuple(best)


def nearest_width(config: GeneratorConfig, target: GeneratorConfig, *, channels: tuple[int, int]) -> int:
    """Return the width at which a generator's size is nearest to that of `target`; `channels`: (input, output)."""
    target_bytes = _size_in_bytes(target, channels)
    low = max(1, _largest_true(lambda width: _size_in_bytes(config, channels, width) <= target_bytes))
    return min((low, low + 1), key=lambda width: abs(_size_in_bytes(config, channels, width) - target_bytes))


def _size_in_bytes(config: GeneratorConfig, channels: tuple[int, int], width: int | None = None) -> int:
    """Return a generator's bytes at `width` (default: as configured), for images with (input, output) `channels`."""
    config = config.model_copy(update={"channels": width or config.channels})
    with torch.device("meta"):
        net = build_generator(config, in_channels=channels[0], out_channels=channels[1])
    return BYTES_PER_WEIGHT * count_parameters(net)


def _largest_true(condition: Callable[[int], bool], maximum: int = 4095) -> int:
    """Return the largest number from 1 to `maximum` that meets a monotonic `condition`; 0 if none does."""
    low, high = 0, maximum + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if condition(middle) else (low, middle)
    return low


def describe_sizes(sizes: Mapping[Direction, NetworkSize], *, side: int) -> str:
    """Describe the sizes of generators, and their asymmetry: the ratio of the last size to the first.

    `side`: side in pixels of the image for which MACs were counted.
    """
    lines = [
        f"{name}: {size.parameters:,} parameters, {size.bytes / 1e6:.3f} MB, {size.macs / 1e9:.2f} G "
        f"multiply-accumulates for one image of {side}x{side}"
        for name, size in sizes.items()
    ]
    if len(sizes) > 1:
        (first, *_, last), numbers = sizes, [size.parameters for size in sizes.values()]
        lines.append(f"asymmetry: {last} has {numbers[-1] / numbers[0]:.3f} times the bytes of {first}")
    return "\n".join(lines)
