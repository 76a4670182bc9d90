"""Generators: the ResNet of Johnson et al. (2016) and the U-Net of Isola et al. (2017), as in CycleGAN; and cells.

Parameter names follow the reference implementation (`model.<index>`, nested `model` for the U-Net), so that its
published weights fit without renaming.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from velogan.files import pluralize
from velogan.networks.antialias import BlurDown, BlurUp
from velogan.networks.cells import (
    STAGE_INDEX,
    FillSlot,
    ResidualCell,
    Space,
    check_operations,
    default_operations,
    fill_with,
    generator_kinds,
    generator_layers,
    reject_operations,
)
from velogan.networks.layers import InitName, NormName, Stage, initialise, norm_layer
from velogan.networks.outputs import ChangeGenerator, KeepGenerator, MaskGenerator
from velogan.types import ForwardKind


class GeneratorConfig(BaseModel):
    """The architecture of a generator."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    network: Literal["resnet", "unet_128", "unet_256", "cells"] = Field(
        default="resnet",
        description="Architecture. resnet: residual blocks at a quarter of the side, sides divisible by 4. "
        "unet_128, unet_256: skip connections down to one pixel, sides divisible by 128 or 256. cells: like a resnet, "
        "built from the `operations` that an architecture search chose (docs/search.md).",
    )
    blocks: int = Field(
        default=9,
        ge=0,
        le=256,
        description="Number of residual blocks of a resnet, or of residual cells. In the paper 9 for images of 256 "
        "pixels or more, 6 for smaller ones.",
    )
    channels: int = Field(
        default=64,
        ge=1,
        le=4096,
        description="Feature maps after the first convolution (ngf); a resnet's encoding has four times as many. For "
        "cells: feature maps of the encoding, H.",
    )
    norm: NormName = Field(
        default="instance",
        description="Normalisation after convolutions. instance_affine: with weights, after convolutions without bias, "
        "as in the Keras example.",
    )
    dropout: bool = Field(default=False, description="Dropout 0.5 in residual blocks, or in the U-Net's inner blocks.")
    decoder: Literal["reference", "simple", "resize"] = Field(
        default="reference",
        description="Layers of a resnet after its blocks. reference: the encoder mirrored; simple: half as wide, "
        "without norms; resize: as reference, but with nearest-neighbour upsampling and convolutions instead of "
        "transposed convolutions, whose uneven overlap causes checkerboard patterns.",
    )
    antialias: Literal["none", "down", "up", "both"] = Field(
        default="none",
        description="Blur when a resnet halves the sides (down), doubles them (up), or both, so that shifting the "
        "input shifts the output. CUT's generators use both. Slower.",
    )
    padding: Literal["zeros", "reflect"] = Field(
        default="zeros",
        description="Padding of a resnet's strided convolutions. zeros: as in the reference; with stride 2 only the "
        "left and top borders are padded, which can leave lines there. reflect: reflection padding, as before the "
        "first convolution and in the blocks.",
    )
    output: Literal["image", "change", "mask", "keep", "auto"] = Field(
        default="image",
        description="image: the decoder outputs the translation. change: the decoder decodes the features before and "
        "after the blocks, and the difference is added to the input, so that what the blocks do not change stays "
        "identical; this needs a decoder without instance norm. mask: the network also outputs a mask, aligned with "
        "edges of the input, that selects where its image replaces the input. keep: at inference, small differences "
        "from the input are suppressed, so unchanged regions stay identical. With mask and keep, weak changes of fine "
        "detail are suppressed at inference too, and A and B need equal numbers of channels. auto: mask if these are "
        "equal, else image.",
    )
    operations: tuple[str, ...] = Field(
        default=(),
        description="Operations of cells, two for each cell, in order, such as conv3 or max_pool (networks/cells.py). "
        "Default: 3x3 convolutions, as in a resnet.",
    )
    space: Space = Field(
        default="paper",
        description="Search space of cells. paper: from the image to the encoding cell, and from the decoding cell to "
        "the image. code: with one more operation before and after, as in the authors' code.",
    )
    init: InitName | Literal["identity"] = Field(
        default="normal",
        description="Initialisation of weights. normal: as in the reference implementation; xavier, kaiming, "
        "orthogonal: for comparisons with programs that use them. identity: as kaiming, but residual blocks start as "
        "the identity; for norm=none, where randomly initialised blocks may die early.",
    )

    @model_validator(mode="after")
    def _check_combinations(self) -> GeneratorConfig:
        resnet_fields = ["decoder", "antialias", "padding"] if self.network != "resnet" else []
        if self.network not in ("resnet", "cells"):
            resnet_fields += ["output"] if self.output == "change" else []
        for name in [*resnet_fields, *(["dropout"] if self.network == "cells" else [])]:
            if (value := getattr(self, name)) != type(self).model_fields[name].default:
                raise ValueError(f"{name}={value} is for resnets, not {self.network}: leave it out, or use resnet")
        if self.network != "cells":
            reject_operations(self.operations, self.space, network=self.network)
        elif self.operations:
            kinds = generator_kinds(self.blocks, self.space)
            network = f"a generator with blocks={self.blocks}"
            check_operations(self.operations, kinds, space=self.space, network=network)
        if self.decoder == "resize" and self.antialias in ("up", "both"):
            raise ValueError(
                f"decoder=resize and antialias={self.antialias} both replace the upsampling: choose one of them"
            )
        if self.output == "change" and self.norm.startswith("instance") and self.decoder != "simple":
            raise ValueError(
                "output=change takes the difference of two decoded images, and instance norm would scale them "
                "differently: set decoder=simple, or norm=none"
            )
        if self.init == "identity" and (self.norm != "none" or not self.has_stages):
            raise ValueError(
                f"init=identity is for residual blocks without norms, not network={self.network} with "
                f"norm={self.norm}: set init=kaiming, or norm=none and network=resnet"
            )
        return self

    def resolve_output(self, in_channels: int, out_channels: int) -> GeneratorConfig:
        """Return the configuration for images with these numbers of channels, with `output=auto` resolved."""
        if self.output != "auto":
            return self
        return self.model_copy(update={"output": "mask" if in_channels == out_channels else "image"})

    @property
    def multiple(self) -> int:
        """The number that image sides must be divisible by."""
        return {"resnet": 4, "unet_128": 128, "unet_256": 256, "cells": 4}[self.network]

    @property
    def has_stages(self) -> bool:
        """Whether `split_stages` can divide the network into an encoder, a translator and a decoder."""
        return self.network in ("resnet", "cells")

    @property
    def encoding_channels(self) -> int:
        """The number of channels of the encodings, if the network `has_stages`."""
        return self.channels if self.network == "cells" else 4 * self.channels

    @property
    def resolved_operations(self) -> tuple[str, ...]:
        """The operations of cells: `operations`, or the default ones if none are set."""
        return self.operations or default_operations(generator_kinds(self.blocks, self.space), space=self.space)

    def autoencoder_fields(self) -> dict[str, Any]:
        """Return the fields to change so that the generator has an encoder and a decoder, but no translator."""
        fields: dict[str, Any] = {"blocks": 0, "output": "image"}
        if self.operations:
            kinds = generator_kinds(self.blocks, self.space)
            residual = {index for index, kind in enumerate(kinds) if kind == "r"} - {0, len(kinds) - 1}
            fields["operations"] = tuple(name for index, name in enumerate(self.operations) if index not in residual)
        return fields


def build_generator(
    config: GeneratorConfig, *, in_channels: int = 3, out_channels: int = 3, fill: FillSlot | None = None
) -> Generator | ChangeGenerator | MaskGenerator:
    """Build a newly initialised generator: `(B, in_channels, H, W)` to `(B, out_channels, H, W)`, both in [-1, 1].

    `fill`: builds the operations of cells. Default: the operations of `config`.
    Raises ValueError if `output` is change, mask or keep and the numbers of channels differ.
    """
    config = config.resolve_output(in_channels, out_channels)
    has_mask = config.output == "mask"
    if config.output in ("mask", "keep", "change") and in_channels != out_channels:
        raise ValueError(
            f"generator.output={config.output} keeps parts of the input, but A and B have {in_channels} and "
            f"{pluralize(out_channels, 'channel')}: set generator.output=image"
        )
    if config.network == "cells":
        model = generator_layers(
            fill or fill_with(config.resolved_operations),
            hidden=config.channels,
            blocks=config.blocks,
            norm=config.norm,
            space=config.space,
            c_in=in_channels,
            c_out=out_channels + has_mask,
        )
    else:
        build = _resnet if config.network == "resnet" else _unet
        model = build(config, in_channels, out_channels + has_mask)
    net = Generator(model, multiple=config.multiple)
    if config.init != "identity":
        initialise(net, init=config.init)
    else:
        initialise(net, init="kaiming")
        for layer in _last_convolutions(net):
            nn.init.zeros_(layer.weight)
    if has_mask:
        return MaskGenerator(net)
    if config.output == "keep":
        return KeepGenerator(net)
    return ChangeGenerator(*split_stages(net)) if config.output == "change" else net


def _last_convolutions(net: nn.Module) -> Iterator[nn.Conv2d]:
    """Yield the last convolution of each residual block; if a mixed operation is last, all of its convolutions."""
    for block in (block for block in net.modules() if isinstance(block, (ResidualBlock, ResidualCell))):
        (layers,) = block.children()
        by_layer = [
            [module for module in layer.modules() if isinstance(module, nn.Conv2d)] for layer in layers.children()
        ]
        yield from [convolutions for convolutions in by_layer if convolutions][-1]


class Generator(Stage):
    """An image-to-image network. Image sides, in pixels, must be divisible by `multiple`."""

    def __init__(self, model: nn.Module, *, multiple: int):
        super().__init__(model)
        self.multiple = multiple


class Stages(NamedTuple):
    """A generator in three parts; layers keep their names.

    `encoder`: images `(B, C, H, W)` to encodings `(B, config.encoding_channels, H/4, W/4)`; `translator`: encodings to
    encodings; `decoder`: encodings to images.
    """

    encoder: Stage
    translator: Stage
    decoder: Stage


def split_stages(net: nn.Module) -> Stages:
    """Split a generator (see `GeneratorConfig.has_stages`) into its stages, which share its weights."""
    if isinstance(net, ChangeGenerator):
        stages = net.encoder, net.translator, net.decoder
        assert all(isinstance(stage, Stage) for stage in stages)
        return Stages(*stages)  # pyright: ignore[reportArgumentType]
    assert isinstance(net, Generator)
    assert isinstance(net.model, nn.Sequential), "a U-Net cannot be split"
    stages = [OrderedDict[str, nn.Module]() for _ in Stages._fields]
    encoder_layers = _ENCODER_LAYERS + sum(isinstance(layer, BlurDown) for layer in net.model)
    encoder_layers += sum(isinstance(layer, nn.ReflectionPad2d) for layer in list(net.model)[1:_ENCODER_LAYERS])
    for name, layer in net.model.named_children():
        default = 0 if name.isdigit() and int(name) < encoder_layers else 2
        index = 1 if isinstance(layer, (ResidualBlock, ResidualCell)) else STAGE_INDEX.get(name, default)
        stages[index][name] = layer
    return Stages(*(Stage(nn.Sequential(layers)) for layers in stages))


def compose(*stages: nn.Module) -> Generator:
    """Return the generator that runs `stages` in sequence and shares their weights.

    Layers keep their names: an encoder, a translator and a decoder become a generator as `build_generator` returns it;
    an encoder and a decoder become an autoencoder.
    """
    layers = OrderedDict[str, nn.Module]()
    for stage in stages:
        assert isinstance(stage, Stage)
        layers |= dict(stage.model.named_children())
    return Generator(nn.Sequential(layers), multiple=4)


class ResidualBlock(nn.Module):
    """A residual block, `x + conv_block(x)`: two reflection-padded 3x3 convolutions with norms, a ReLU between them."""

    forward_kind: ClassVar[ForwardKind] = "residual"

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


_ENCODER_LAYERS = 10  # padding, and three convolutions with norm and ReLU; blurs and reflection padding come on top


def _resnet(config: GeneratorConfig, c_in: int, c_out: int) -> nn.Sequential:
    layers = list(_encoder(config, c_in))
    width = 4 * config.channels
    layers += [ResidualBlock(width, norm=config.norm, dropout=config.dropout) for _ in range(config.blocks)]
    return nn.Sequential(*layers, *_decoder(config, c_out))


def _encoder(config: GeneratorConfig, c_in: int) -> Iterator[nn.Module]:
    make_norm, bias = norm_layer(config.norm), config.norm == "instance"
    width = config.channels
    yield from (nn.ReflectionPad2d(3), nn.Conv2d(c_in, width, 7, bias=bias), make_norm(width), nn.ReLU())
    has_blur, has_reflection = config.antialias in ("down", "both"), config.padding == "reflect"
    for c in (width, 2 * width):
        conv = nn.Conv2d(c, 2 * c, 3, stride=1 if has_blur else 2, padding=0 if has_reflection else 1, bias=bias)
        yield from [nn.ReflectionPad2d(1)] if has_reflection else []
        yield from (conv, make_norm(2 * c), nn.ReLU(), *([BlurDown(2 * c)] if has_blur else []))


def _decoder(config: GeneratorConfig, c_out: int) -> Iterator[nn.Module]:
    is_simple, c_in = config.decoder == "simple", 4 * config.channels
    norm: NormName = "none" if is_simple else config.norm
    make_norm, bias = norm_layer(norm), is_simple or norm == "instance"
    width = -(-config.channels // 2) if is_simple else config.channels
    for c in (2 * width, width):
        if config.decoder == "resize":  # Odena et al. 2016
            conv = nn.Conv2d(c_in, c, 3, bias=bias)
            yield from (nn.Upsample(scale_factor=2), nn.ReflectionPad2d(1), conv)
        elif config.antialias in ("up", "both"):
            yield from (BlurUp(c_in), nn.Conv2d(c_in, c, 3, padding=1, bias=bias))
        else:
            yield nn.ConvTranspose2d(c_in, c, 3, stride=2, padding=1, output_padding=1, bias=bias)
        yield from (make_norm(c), nn.ReLU())
        c_in = c
    yield from (nn.ReflectionPad2d(3), nn.Conv2d(width, c_out, 7), nn.Tanh())


class SkipBlock(nn.Module):
    """One inner level of a U-Net, `cat(x, up(inner(down(x))))`."""

    forward_kind: ClassVar[ForwardKind] = "skip"

    def __init__(self, layers: list[nn.Module]):
        super().__init__()
        self.model = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.model(x)], 1)


def _unet(config: GeneratorConfig, c_in: int, c_out: int) -> Stage:
    num_downs = {"unet_128": 7, "unet_256": 8}[config.network]
    width, make_norm = config.channels, norm_layer(config.norm)
    bias = config.norm == "instance"

    def down(c_in: int, c_out: int) -> nn.Conv2d:
        return nn.Conv2d(c_in, c_out, 4, stride=2, padding=1, bias=bias)

    def up(c_in: int, c_out: int, *, bias: bool = bias) -> nn.ConvTranspose2d:
        return nn.ConvTranspose2d(c_in, c_out, 4, stride=2, padding=1, bias=bias)

    inner = 8 * width
    block = SkipBlock([nn.LeakyReLU(0.2), down(inner, inner), nn.ReLU(), up(inner, inner), make_norm(inner)])
    for level in range(num_downs - 2, 0, -1):
        outer, c = width * min(2 ** (level - 1), 8), width * min(2**level, 8)
        layers = [nn.LeakyReLU(0.2), down(outer, c), make_norm(c), block]
        layers += [nn.ReLU(), up(2 * c, outer), make_norm(outer)]
        if config.dropout and outer == c:
            layers.append(nn.Dropout(0.5))
        block = SkipBlock(layers)
    last = up(2 * width, c_out, bias=True)
    return Stage(nn.Sequential(down(c_in, width), block, nn.ReLU(), last, nn.Tanh()))
