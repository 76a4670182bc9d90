"""The head that projects features before a contrastive loss."""

from __future__ import annotations

from torch import nn

from velogan.networks.layers import initialise


def build_projection(*, in_channels: int, width: int = 256) -> nn.Sequential:
    """A freshly initialised perceptron at each position (Park et al. 2020, section 3): `(B, in_channels, H, W)` to
    `(B, width, H, W)`."""
    net = nn.Sequential(nn.Conv2d(in_channels, width, 1), nn.ReLU(), nn.Conv2d(width, width, 1))
    initialise(net, init="xavier", gain=1.0)
    return net
