"""Discriminators: PatchGANs (Isola et al. 2017), 1x1 convolutions, heads on pretrained features, and cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import nn

from velogan.networks.antialias import BlurDown
from velogan.networks.cells import (
    FillSlot,
    Space,
    check_operations,
    default_operations,
    discriminator_kinds,
    discriminator_layers,
    fill_with,
    reject_operations,
)
from velogan.networks.layers import InitName, NormName, Stage, initialise, norm_layer, spectrally_normalise
from velogan.networks.projected import ProjectedDiscriminator


class DiscriminatorConfig(BaseModel):
    """The architecture of a discriminator."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    network: Literal["basic", "n_layers", "pixel", "projected", "projected+basic", "cells"] = Field(
        default="basic",
        description="basic: PatchGAN with patches of 70x70 pixels; n_layers: PatchGAN of depth `layers`; "
        "pixel: 1x1 convolutions, each pixel by itself; projected: four small heads on the features of a pretrained "
        "network; projected+basic: these and the PatchGAN. Use method.gan=hinge with both. cells: built from the "
        "`operations` that an architecture search chose (docs/search.md).",
    )
    features: str = Field(
        default="lite0",
        description="Pretrained network of projected: EfficientNet-Lite0 to 2 as lite0, lite1, lite2, or one that was "
        "registered in Python.",
    )
    feature_size: int | None = Field(
        default=None,
        ge=32,
        le=1024,
        description="Minimum shorter side in pixels of the input of projected: smaller images are enlarged to it, at "
        "most to twice their size. EfficientNet-Lite0 was trained at 224. Default: no image is enlarged.",
    )
    layers: int = Field(default=3, ge=1, le=8, description="Depth of n_layers; basic is 3.")
    channels: int = Field(default=64, ge=1, le=4096, description="Feature maps after the first convolution (ndf).")
    norm: NormName | Literal["spectral"] = Field(
        default="instance",
        description="Normalisation after the inner convolutions. spectral: spectral normalisation of all convolution "
        "weights instead, which bounds the discriminator's Lipschitz constant.",
    )
    antialias: bool = Field(default=False, description="Use blurred downsampling in a PatchGAN, as CUT does. Slower.")
    operations: tuple[str, ...] = Field(
        default=(), description="Operations of cells, in order, such as conv4 or max_pool. Default: 4x4 convolutions."
    )
    space: Space = Field(
        default="paper",
        description="The search space of cells. paper: two encoding cells. code: the authors' code, five operations, "
        "under spectral norm too.",
    )
    init: InitName = Field(default="normal", description="Initialisation of weights, as for a generator.")

    @model_validator(mode="after")
    def _check_combinations(self) -> DiscriminatorConfig:
        if self.antialias and self.network not in ("basic", "n_layers", "projected+basic"):
            raise ValueError(f"antialias is for PatchGANs, not {self.network}: leave it out, or set network=basic")
        if self.network != "cells":
            reject_operations(self.operations, self.space, network=self.network)
        elif self.operations:
            kinds = discriminator_kinds(self.space)
            check_operations(self.operations, kinds, space=self.space, network="a discriminator")
        return self

    @property
    def resolved_operations(self) -> tuple[str, ...]:
        """The operations of cells: `operations`, or the default ones if none are set."""
        return self.operations or default_operations(
            discriminator_kinds(self.space), space=self.space, is_discriminator=True
        )


HEAD_WIDTH_FACTOR = 4
"""Channels of the heads of `projected`, as a multiple of `channels`."""


def build_discriminator(
    config: DiscriminatorConfig, *, in_channels: int = 3, fill: FillSlot | None = None
) -> Stage | ProjectedDiscriminator:
    """Build a newly initialised discriminator of images `(B, in_channels, H, W)` in [-1, 1].

    It outputs a logit per patch, `(B, 1, h, w)`: 30x30 for `basic` at 256x256. See also `ProjectedDiscriminator`.
    `fill`: builds the operations of cells. Default: the operations of `config`.
    Raises ValueError if the features of `projected` are not available.
    """
    if config.network == "projected":
        return _projected(config, patch=None)
    net = _build(config, in_channels, fill=fill)
    return _projected(config, patch=net) if config.network == "projected+basic" else net


def _projected(config: DiscriminatorConfig, *, patch: nn.Module | None) -> ProjectedDiscriminator:
    width = HEAD_WIDTH_FACTOR * config.channels
    return ProjectedDiscriminator(config.features, width=width, size=config.feature_size, patch=patch)


def build_encoding_discriminator(
    config: DiscriminatorConfig, *, in_channels: int, fill: FillSlot | None = None
) -> Stage:
    """Build a newly initialised discriminator of encodings `(B, in_channels, H/4, W/4)`.

    It lacks the first two convolutions of a PatchGAN, or the first two operations of cells, which quarter an image's
    sides; `pixel` lacks none. The receptive field of `basic` is 16x16 positions. After a resnet's encoder that is 73x73
    pixels, since positions have receptive fields of 13x13 pixels and are 4 pixels apart.
    """
    return _build(config, in_channels, fill=fill, first=2)


def _build(config: DiscriminatorConfig, in_channels: int, *, fill: FillSlot | None, first: int = 0) -> Stage:
    """Build an initialised discriminator without the cell operations or PatchGAN convolutions before `first`."""
    if config.network == "cells":
        model = _cells(config, in_channels, fill=fill, first=first)
    elif config.network == "pixel":
        model = _pixel(config, in_channels)
    else:
        model = _patch(config, in_channels, first=first)
    net = Stage(model)
    initialise(net, init=config.init)
    if config.norm == "spectral" or (config.network, config.space) == ("cells", "code"):
        spectrally_normalise(net)
    return net


def _cells(config: DiscriminatorConfig, in_channels: int, *, fill: FillSlot | None, first: int) -> nn.Sequential:
    return discriminator_layers(
        fill or fill_with(config.resolved_operations[first:]),
        channels=config.channels,
        norm="none" if config.norm == "spectral" else config.norm,
        space=config.space,
        in_channels=in_channels,
        first=first,
    )


def _norm(config: DiscriminatorConfig) -> tuple[Callable[[int], nn.Module], bool]:
    """Return the constructor of the norm after an inner convolution, and whether that convolution has a bias."""
    if config.norm == "spectral":
        return norm_layer("none"), True
    return norm_layer(config.norm), config.norm == "instance"


def _patch(config: DiscriminatorConfig, in_channels: int, *, first: int) -> nn.Sequential:
    """Build a PatchGAN without the convolutions before index `first`."""
    layers = config.layers if config.network == "n_layers" else 3
    if first > layers:
        raise ValueError(
            f"discriminator.layers={layers} leaves no layer for encodings, which have a quarter of the image's side: "
            "set 2 or more"
        )
    width, (make_norm, bias) = config.channels, _norm(config)
    parts: list[nn.Module] = []
    down_stride = 1 if config.antialias else 2

    def blur(channels: int) -> list[nn.Module]:
        return [BlurDown(channels)] if config.antialias else []

    if first == 0:
        conv = nn.Conv2d(in_channels, width, 4, stride=down_stride, padding=1)
        parts = [conv, nn.LeakyReLU(0.2), *blur(width)]
    for n in range(max(first, 1), layers + 1):
        c_in = in_channels if n == first else width * min(2 ** (n - 1), 8)
        c_out = width * min(2**n, 8)
        stride = down_stride if n < layers else 1
        conv = nn.Conv2d(c_in, c_out, 4, stride=stride, padding=1, bias=bias)
        parts += [conv, make_norm(c_out), nn.LeakyReLU(0.2), *(blur(c_out) if n < layers else [])]
    parts.append(nn.Conv2d(width * min(2**layers, 8), 1, 4, stride=1, padding=1))
    return nn.Sequential(*parts)


def _pixel(config: DiscriminatorConfig, in_channels: int) -> nn.Sequential:
    width, (make_norm, bias) = config.channels, _norm(config)
    return nn.Sequential(
        nn.Conv2d(in_channels, width, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 1, bias=bias),
        make_norm(2 * width),
        nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 1, 1, bias=bias),
    )
