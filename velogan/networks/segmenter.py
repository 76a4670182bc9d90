"""A small semantic segmentation network."""

from __future__ import annotations

from torch import nn

from velogan.networks.generators import Generator, GeneratorConfig, build_generator


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
