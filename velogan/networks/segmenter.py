"""A small network that tells the class of each pixel."""

from __future__ import annotations

from torch import nn

from velogan.networks.generators import Generator, GeneratorConfig, build_generator


def build_segmenter(*, in_channels: int, classes: int, channels: int) -> Generator:
    """Images `(B, in_channels, H, W)` in [-1, 1] to logits `(B, classes, H, W)`; sides must be divisible by 4.

    A generator of three residual blocks and so many `channels`, without the last tanh.
    """
    config = GeneratorConfig(blocks=3, channels=channels)
    whole = build_generator(config, in_channels=in_channels, out_channels=classes)
    assert isinstance(whole, Generator)
    *layers, _ = whole.model.children()
    return Generator(nn.Sequential(*layers), multiple=config.multiple)
