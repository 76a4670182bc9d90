"""How large networks are: parameters, bytes and multiplications; and the width at which two sizes are equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from velogan.networks.generators import GeneratorConfig, build_generator

FLOAT32 = 4
"""Bytes of a weight, and of its gradient."""

MATCHES = 0.01
"""Sizes that differ by no more than this share count as equal."""


@dataclass(frozen=True)
class Size:
    """Of one network: `macs` are multiplications and additions of its convolutions for one image of 256x256."""

    parameters: int
    macs: int

    @property
    def bytes(self) -> int:
        """Of its weights in float32."""
        return FLOAT32 * self.parameters


def size(config: GeneratorConfig, *, in_channels: int = 3, out_channels: int = 3, side: int = 256) -> Size:
    """The size of a generator, on an image of `side` x `side`. Nothing is allocated or computed."""
    with torch.device("meta"):
        net = build_generator(config, in_channels=in_channels, out_channels=out_channels)
        multiplied = macs(net, torch.empty(1, in_channels, side, side))
    return Size(parameters(net), multiplied)


def parameters(net: nn.Module) -> int:
    """The weights and biases of a network."""
    return sum(parameter.numel() for parameter in net.parameters())


@torch.no_grad()
def macs(net: nn.Module, images: torch.Tensor) -> int:
    """The multiplications of a network's convolutions on `images`.

    A convolution multiplies each tap with each pixel of its result, a transposed one with each of its input. Blurs, a
    hundredth of their neighbours, are left out.
    """
    found: list[int] = []

    def see(layer: nn.Module, inputs: Any, result: torch.Tensor) -> None:
        assert isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d))
        seen = inputs[0] if isinstance(layer, nn.ConvTranspose2d) else result
        found.append(len(seen) * seen.shape[2:].numel() * layer.weight.numel())

    for layer in net.modules():
        if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
            layer.register_forward_hook(see)
    net.eval()(images)
    return sum(found)


def reference(name: str) -> GeneratorConfig:
    """The CycleGAN generator called C32 or C64: a ResNet-9 with so many feature maps after its first convolution."""
    if not (name[:1] in ("C", "c") and name[1:].isdigit() and 1 <= int(name[1:]) <= 4096):
        raise ValueError(f"--match-size {name:.40}: write C and the width of a ResNet-9, for example C64")
    return GeneratorConfig(channels=int(name[1:]))


def matched(
    generators: Sequence[GeneratorConfig], to: GeneratorConfig, *, channels: Sequence[tuple[int, int]] = ()
) -> tuple[int, ...]:
    """The widths `channels` at which `generators` have, in all, the bytes of as many generators `to`, within 1 %.

    All have the same width, as in the paper, where one is within 1 %; else some at the end of the row are one wider.
    `channels` are those of the images in and out. ValueError where no width is near enough.
    """
    ends = list(channels) or [(3, 3)] * len(generators)
    target = sum(_bytes(to, one) for one in ends)

    def total(widths: Sequence[int]) -> int:
        return sum(
            _bytes(config.model_copy(update={"channels": width}), one)
            for config, width, one in zip(generators, widths, ends)
        )

    def off(widths: list[int]) -> float:
        return abs(total(widths) / target - 1)

    low = _last(lambda width: total([width] * len(generators)) <= target)
    all_equal = [[width] * len(generators) for width in (max(low, 1), low + 1)]
    same = min(all_equal, key=off)
    if off(same) <= MATCHES:
        return tuple(same)
    uneven = [[low] * count + [low + 1] * (len(generators) - count) for count in range(1, len(generators))]
    best = min([same, *uneven] if low else [same], key=off)
    if off(best) > MATCHES:
        raise ValueError(
            f"--match-size: {target:,} bytes are between the sizes of these generators at widths {low} and {low + 1}, "
            f"and the nearest differs by {100 * off(best):.1f} %: match a larger size, or set --hidden {best[0]}"
        )
    return tuple(best)


def nearest_width(config: GeneratorConfig, to: GeneratorConfig, *, channels: tuple[int, int]) -> int:
    """The width at which a generator's bytes are nearest to those of `to`; `channels` are those of the images."""

    def made(width: int) -> int:
        return _bytes(config.model_copy(update={"channels": width}), channels)

    target = _bytes(to, channels)
    low = max(1, _last(lambda width: made(width) <= target))
    return min((low, low + 1), key=lambda width: abs(made(width) - target))


def _bytes(config: GeneratorConfig, ends: tuple[int, int]) -> int:
    with torch.device("meta"):
        return FLOAT32 * parameters(build_generator(config, in_channels=ends[0], out_channels=ends[1]))


def _last(holds: Callable[[int], bool], most: int = 4095) -> int:
    """The largest number from 1 to `most` for which `holds`, which holds up to some number; 0 if for none."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def table(sizes: Sequence[Size], names: Sequence[str], *, side: int = 256) -> str:
    """Parameters, MACs and bytes of each generator, and the asymmetry: how many times the last is the first's size.

    MACs are those of one picture of `side` x `side`.
    """

    def line(name: str, parameters: int, macs: int) -> str:
        return f"{name:<10} {parameters:>12,} {macs / 1e9:>8.2f} G {FLOAT32 * parameters / 1e6:>9.3f} MB"

    lines = [f"{'generator':<10} {'parameters':>12} {'MACs':>10} {'bytes':>12}"]
    lines += [line(name, one.parameters, one.macs) for name, one in zip(names, sizes)]
    if len(sizes) > 1:
        lines.append(line("together", sum(one.parameters for one in sizes), sum(one.macs for one in sizes)))
        times = sizes[-1].parameters / sizes[0].parameters
        lines.append(f"asymmetry: {names[-1]} has {times:.3f} times the bytes of {names[0]}")
    lines.append(f"MACs: multiplications for one picture of {side}x{side}")
    return "\n".join(lines)
