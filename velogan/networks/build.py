"""Construction of networks, from their configuration or from the headers of weights files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from velogan.networks.discriminators import DiscriminatorConfig, build_discriminator, build_encoding_discriminator
from velogan.networks.generators import Generator, GeneratorConfig, build_generator
from velogan.networks.patch_features import PatchHeads

MAX_CHANNELS = 4096


class NetworkFactory:
    """Builds newly initialised networks for methods; the subclass `SupernetFactory` builds supernets."""

    def generator(self, config: GeneratorConfig, *, in_channels: int = 3, out_channels: int = 3) -> nn.Module:
        """Build a network from `(B, in_channels, H, W)` to `(B, out_channels, H, W)`, both in [-1, 1]."""
        return build_generator(config, in_channels=in_channels, out_channels=out_channels)

    def discriminator(self, config: DiscriminatorConfig, *, in_channels: int) -> nn.Module:
        """Build a network from images `(B, in_channels, H, W)` in [-1, 1] to logits `(B, 1, h, w)` of each head."""
        return build_discriminator(config, in_channels=in_channels)

    def encoding_discriminator(self, config: DiscriminatorConfig, *, in_channels: int) -> nn.Module:
        """Build a network from a generator's encodings `(B, in_channels, H/4, W/4)` to logits `(B, 1, h, w)`."""
        return build_encoding_discriminator(config, in_channels=in_channels)


def build_network(header: Mapping[str, Any]) -> nn.Module:
    """Build a newly initialised network from the `header` of a weights file. Raises ValueError if it is invalid."""
    kind, config = header.get("network"), header.get("config")
    channels: dict[str, Any] = {
        name: _parse_count(name, header[name]) for name in ("in_channels", "out_channels") if name in header
    }
    match kind:
        case "generator":
            return build_generator(GeneratorConfig.model_validate(config), **channels)
        case "discriminator":
            return build_discriminator(DiscriminatorConfig.model_validate(config), **channels)
        case "encoding_discriminator":
            return build_encoding_discriminator(DiscriminatorConfig.model_validate(config), **channels)
        case "segmenter":
            sizes = {name: _parse_count(name, header[name]) for name in ("classes", "channels")}
            return build_segmenter(**channels, **sizes)
        case "patch_heads":
            return PatchHeads(_parse_widths(header))
    raise ValueError(f"network={kind!r:.40} is not a valid kind of network")


MAX_HEADS = 16


def _parse_widths(header: Mapping[str, Any]) -> list[int]:
    widths = header.get("widths")
    if not isinstance(widths, list) or not 1 <= len(widths) <= MAX_HEADS:
        raise ValueError(f"widths={widths!r:.40} is not a list of 1 to {MAX_HEADS} numbers")
    return [_parse_count("widths", width) for width in widths]


def _parse_count(name: str, count: Any) -> int:
    if not isinstance(count, int) or not 1 <= count <= MAX_CHANNELS:
        raise ValueError(f"{name}={count!r:.40} is not a whole number from 1 to {MAX_CHANNELS}")
    return count


def build_segmenter(*, in_channels: int, classes: int, channels: int) -> Generator:
    """Build a network from images `(B, in_channels, H, W)` in [-1, 1] to logits `(B, classes, H, W)`.

    It is a generator of three residual blocks with `channels` feature maps after its first convolution, without the
    final tanh. Sides must be divisible by 4.
    """
    config = GeneratorConfig(blocks=3, channels=channels)
    generator = build_generator(config, in_channels=in_channels, out_channels=classes)
    assert isinstance(generator, Generator)
    *layers, _ = generator.model.children()
    return Generator(nn.Sequential(*layers), multiple=config.multiple)
