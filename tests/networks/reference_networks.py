"""The networks of the reference implementation, as its description has them: module by module, in-place layers too.

With `blur`, those of CUT, whose sampling is anti-aliased.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

NORMS: dict[str, Any] = {
    "instance": partial(nn.InstanceNorm2d, affine=False, track_running_stats=False),
    "old instance": partial(nn.InstanceNorm2d, affine=False, track_running_stats=True),
    "batch": nn.BatchNorm2d,
    "none": lambda channels: nn.Identity(),
}


class _Halve(nn.Module):
    filt: Tensor

    def __init__(self, c: int):
        super().__init__()
        taps = torch.tensor([1.0, 2.0, 1.0])
        square = taps[:, None] * taps[None, :]
        self.register_buffer("filt", (square / torch.sum(square))[None, None].repeat((c, 1, 1, 1)))
        self.pad = nn.ReflectionPad2d((1, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(self.pad(x), self.filt, stride=2, groups=x.shape[1])


class _Double(nn.Module):
    filt: Tensor

    def __init__(self, c: int):
        super().__init__()
        taps = torch.tensor([1.0, 3.0, 3.0, 1.0])
        square = taps[:, None] * taps[None, :]
        self.register_buffer("filt", (square / torch.sum(square) * 2**2)[None, None].repeat((c, 1, 1, 1)))
        self.pad = nn.ReplicationPad2d((1, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        doubled = nn.functional.conv_transpose2d(self.pad(x), self.filt, stride=2, padding=2, groups=x.shape[1])
        return doubled[:, :, 1:, 1:][:, :, :-1, :-1]


class _Block(nn.Module):
    def __init__(self, c: int, norm: str, dropout: bool):
        super().__init__()
        bias, make = "instance" in norm, NORMS[norm]
        half = [nn.ReflectionPad2d(1), nn.Conv2d(c, c, 3, bias=bias), make(c)]
        other = [nn.ReflectionPad2d(1), nn.Conv2d(c, c, 3, bias=bias), make(c)]
        self.conv_block = nn.Sequential(*half, nn.ReLU(True), *([nn.Dropout(0.5)] if dropout else []), *other)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv_block(x)


class Resnet(nn.Module):
    def __init__(
        self,
        *,
        c_in: int = 3,
        c_out: int = 3,
        width: int = 4,
        blocks: int = 6,
        norm: str = "instance",
        dropout=False,
        blur: tuple[str, ...] = (),
    ):
        super().__init__()
        bias, make = "instance" in norm, NORMS[norm]
        layers = [nn.ReflectionPad2d(3), nn.Conv2d(c_in, width, 7, bias=bias), make(width), nn.ReLU(True)]
        for c in (width, 2 * width):
            stride = 1 if "down" in blur else 2
            layers += [nn.Conv2d(c, 2 * c, 3, stride, 1, bias=bias), make(2 * c), nn.ReLU(True)]
            layers += [_Halve(2 * c)] if "down" in blur else []
        layers += [_Block(4 * width, norm, dropout) for _ in range(blocks)]
        for c in (4 * width, 2 * width):
            if "up" in blur:
                layers += [_Double(c), nn.Conv2d(c, c // 2, 3, 1, 1, bias=bias)]
            else:
                layers += [nn.ConvTranspose2d(c, c // 2, 3, 2, 1, output_padding=1, bias=bias)]
            layers += [make(c // 2), nn.ReLU(True)]
        self.model = nn.Sequential(*layers, nn.ReflectionPad2d(3), nn.Conv2d(width, c_out, 7), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


class _Skip(nn.Module):
    def __init__(self, layers: list[nn.Module], *, outermost: bool = False):
        super().__init__()
        self.model, self.outermost = nn.Sequential(*layers), outermost

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x) if self.outermost else torch.cat([x, self.model(x)], 1)


class Unet(nn.Module):
    def __init__(
        self, *, c_in: int = 3, c_out: int = 3, width: int = 2, downs: int = 7, norm: str = "instance", dropout=False
    ):
        super().__init__()
        bias, make = "instance" in norm, NORMS[norm]

        def down(a: int, b: int, bias: bool = bias) -> nn.Conv2d:
            return nn.Conv2d(a, b, 4, 2, 1, bias=bias)

        def up(a: int, b: int, bias: bool = bias) -> nn.ConvTranspose2d:
            return nn.ConvTranspose2d(a, b, 4, 2, 1, bias=bias)

        w = 8 * width
        block = _Skip([nn.LeakyReLU(0.2, True), down(w, w), nn.ReLU(True), up(w, w), make(w)])
        inner = [(w, w)] * (downs - 5) + [(4 * width, w), (2 * width, 4 * width), (width, 2 * width)]
        for number, (outer, c) in enumerate(inner):
            layers = [nn.LeakyReLU(0.2, True), down(outer, c), make(c), block, nn.ReLU(True), up(2 * c, outer)]
            layers += [make(outer), *([nn.Dropout(0.5)] if dropout and number < downs - 5 else [])]
            block = _Skip(layers)
        last = up(2 * width, c_out, bias=True)
        self.model = _Skip([down(c_in, width), block, nn.ReLU(True), last, nn.Tanh()], outermost=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


class Patch(nn.Module):
    def __init__(self, *, c_in: int = 3, width: int = 4, layers: int = 3, norm: str = "instance", blur: bool = False):
        super().__init__()
        bias, make, c, halving = "instance" in norm, NORMS[norm], width, 1 if blur else 2
        parts: list[nn.Module] = [nn.Conv2d(c_in, width, 4, halving, 1), nn.LeakyReLU(0.2, True)]
        parts += [_Halve(width)] if blur else []
        for n in range(1, layers + 1):
            wider = width * min(2**n, 8)
            parts += [
                nn.Conv2d(c, wider, 4, halving if n < layers else 1, 1, bias=bias),
                make(wider),
                nn.LeakyReLU(0.2, True),
            ]
            parts += [_Halve(wider)] if blur and n < layers else []
            c = wider
        self.model = nn.Sequential(*parts, nn.Conv2d(c, 1, 4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


class Pixel(nn.Module):
    def __init__(self, *, c_in: int = 3, width: int = 4, norm: str = "instance"):
        super().__init__()
        bias = "instance" in norm
        inner = nn.Conv2d(width, 2 * width, 1, bias=bias)
        last = nn.Conv2d(2 * width, 1, 1, bias=bias)
        layers = [nn.Conv2d(c_in, width, 1), nn.LeakyReLU(0.2, True), inner, NORMS[norm](2 * width)]
        self.net = nn.Sequential(*layers, nn.LeakyReLU(0.2, True), last)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def trained(net: nn.Module, seed: int = 0) -> nn.Module:
    """With weights and running statistics as a training might leave them."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in net.state_dict().items():
        if value.is_floating_point() and not name.endswith("filt"):
            value.copy_(
                torch.randn(value.shape, generator=generator).abs() * 0.2 + 0.05
                if value.ndim == 1
                else torch.randn(value.shape, generator=generator) * 0.1
            )
    return net.eval()
