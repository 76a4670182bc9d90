"""Generators: the ResNet of Johnson et al. (2016) and the U-Net of Isola et al. (2017), as CycleGAN uses them.

Module names follow the reference implementation (`model.<index>`, nested `model` for the U-Net), so that its
published weights fit without renaming.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from velogan.networks.layers import InitName, NormName, initialise, norm_layer


class GeneratorConfig(BaseModel):
    """What the two generators are made of."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    network: Literal["resnet", "unet_128", "unet_256"] = Field(
        default="resnet",
        description="Architecture. resnet: residual blocks at a quarter of the side, sides divisible by 4. "
        "unet_128, unet_256: skip connections down to one pixel, sides divisible by 128 or 256.",
    )
    blocks: int = Field(
        default=9, ge=0, le=256, description="Residual blocks of a resnet: 9 from 256 pixels on, 6 below."
    )
    channels: int = Field(default=64, ge=1, le=4096, description="Feature maps after the first convolution (ngf).")
    in_channels: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Channels of domain A's pictures, alpha not counted. Default: as many as they have (grey 1, "
        "RGB 3); 3 makes grey pictures RGB, 1 the other way.",
    )
    out_channels: int | None = Field(default=None, ge=1, le=4096, description="The same for domain B.")
    norm: NormName = Field(default="instance", description="Normalisation after convolutions.")
    dropout: bool = Field(default=False, description="Dropout 0.5 in residual blocks, or in the U-Net's inner blocks.")
    init: InitName = Field(default="normal", description="Initialisation of the weights.")
    init_gain: float = Field(
        default=0.02, gt=0, description="Its scale: standard deviation for normal, gain otherwise."
    )

    @property
    def multiple(self) -> int:
        """Image sides must be divisible by this."""
        return {"resnet": 4, "unet_128": 128, "unet_256": 256}[self.network]


def build_generator(config: GeneratorConfig) -> Generator:
    """A freshly initialised generator, `(B, in_channels, H, W)` to `(B, out_channels, H, W)`, both in [-1, 1].

    Channels that are not given are 3.
    """
    build = _resnet if config.network == "resnet" else _unet
    model = build(config, config.in_channels or 3, config.out_channels or 3)
    net = Generator(model, multiple=config.multiple)
    initialise(net, init=config.init, gain=config.init_gain)
    return net


class Generator(nn.Module):
    """An image-to-image network; `multiple` is what image sides must be divisible by, in pixels."""

    def __init__(self, model: nn.Module, *, multiple: int):
        super().__init__()
        self.model = model
        self.multiple = multiple

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


class ResidualBlock(nn.Module):
    """`x + conv_block(x)`: two reflection-padded 3x3 convolutions with norms and one ReLU between."""

    def __init__(self, channels: int, *, norm: NormName, dropout: bool):
        super().__init__()
        make_norm, bias = norm_layer(norm), norm == "instance"
        self.conv_block = nn.Sequential(
            nn.ReflectionPad2d(1),
            nn.Conv2d(channels, channels, 3, bias=bias),
            make_norm(channels),
            nn.ReLU(),
            *([nn.Dropout(0.5)] if dropout else []),
            nn.ReflectionPad2d(1),
            nn.Conv2d(channels, channels, 3, bias=bias),
            make_norm(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv_block(x)


def _resnet(config: GeneratorConfig, c_in: int, c_out: int) -> nn.Sequential:
    make_norm, bias, width = norm_layer(config.norm), config.norm == "instance", config.channels
    layers: list[nn.Module] = [
        nn.ReflectionPad2d(3),
        nn.Conv2d(c_in, width, 7, bias=bias),
        make_norm(width),
        nn.ReLU(),
    ]
    for c in (width, 2 * width):
        layers += [nn.Conv2d(c, 2 * c, 3, stride=2, padding=1, bias=bias), make_norm(2 * c), nn.ReLU()]
    layers += [ResidualBlock(4 * width, norm=config.norm, dropout=config.dropout) for _ in range(config.blocks)]
    for c in (4 * width, 2 * width):
        up = nn.ConvTranspose2d(c, c // 2, 3, stride=2, padding=1, output_padding=1, bias=bias)
        layers += [up, make_norm(c // 2), nn.ReLU()]
    layers += [nn.ReflectionPad2d(3), nn.Conv2d(width, c_out, 7), nn.Tanh()]
    return nn.Sequential(*layers)


class SkipBlock(nn.Module):
    """One level of a U-Net: `cat(x, up(inner(down(x))))`, without the skip at the outermost level."""

    def __init__(self, layers: list[nn.Module], *, outermost: bool = False):
        super().__init__()
        self.model = nn.Sequential(*layers)
        self.outermost = outermost

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x) if self.outermost else torch.cat([x, self.model(x)], 1)


def _unet(config: GeneratorConfig, c_in: int, c_out: int) -> SkipBlock:
    downs = {"unet_128": 7, "unet_256": 8}[config.network]
    width, make_norm, bias = config.channels, norm_layer(config.norm), config.norm == "instance"

    def down(c_in: int, c_out: int) -> nn.Conv2d:
        return nn.Conv2d(c_in, c_out, 4, stride=2, padding=1, bias=bias)

    def up(c_in: int, c_out: int, *, bias: bool = bias) -> nn.ConvTranspose2d:
        return nn.ConvTranspose2d(c_in, c_out, 4, stride=2, padding=1, bias=bias)

    inner = 8 * width
    block = SkipBlock([nn.LeakyReLU(0.2), down(inner, inner), nn.ReLU(), up(inner, inner), make_norm(inner)])
    for level in range(downs - 2, 0, -1):
        outer, c = width * min(2 ** (level - 1), 8), width * min(2**level, 8)
        layers = [nn.LeakyReLU(0.2), down(outer, c), make_norm(c), block]
        layers += [nn.ReLU(), up(2 * c, outer), make_norm(outer)]
        if config.dropout and outer == c:
            layers.append(nn.Dropout(0.5))
        block = SkipBlock(layers)
    last = up(2 * width, c_out, bias=True)
    return SkipBlock([down(c_in, width), block, nn.ReLU(), last, nn.Tanh()], outermost=True)
