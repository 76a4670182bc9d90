"""Feature networks by name: found on disk or downloaded once, checked by hash, and what they make of pictures."""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from velogan.metrics.distances import SUBSETS
from velogan.metrics.figures import LOGITS
from velogan.metrics.inception import Inception
from velogan.metrics.resize import CLEAN, LEGACY
from velogan.metrics.squeezenet import RESIZE, SCALE, SqueezeNet

INCEPTION_URL = (
    "https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/pt_inception-2015-12-05-6726825d.pth"
)
INCEPTION_SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"

Task = Callable[[str], Callable[[int, int], None]]
"""Starts a phase by its name; what it returns is called with `(done, total)`."""


@dataclass(frozen=True)
class FeatureNetwork:
    """`look` takes `(B, C, H, W)` in [-1, 1] to features by name, see `figures.Seen`; `record` is for the protocol."""

    look: Callable[[Tensor], dict[str, Tensor]]
    record: dict[str, Any]


def load_squeezenet(file: Path, device: torch.device | str) -> FeatureNetwork:
    """SqueezeNet v1.0 from an `.npz` file. Raises `ValueError` where the file is missing or something else."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            net = SqueezeNet(dict(arrays)).to(device)
    except (OSError, ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"squeezenet={file} cannot be used: {error}; name the .npz file of its weights") from error

    def look(images: Tensor) -> dict[str, Tensor]:
        features, logits = net(images.to(device))
        return {"squeezenet": features.cpu(), LOGITS: logits.cpu()}

    what = f"SqueezeNet v1.0, mean of fire9 over space, divided by {SCALE:g}; not comparable with published FID"
    record = {"squeezenet": what, "sha256": sha256(file), "resize": RESIZE, "squeeze_kid": SUBSETS}
    return FeatureNetwork(look, record)


def load_inception(file: Path, device: torch.device | str) -> FeatureNetwork:
    """The FID Inception network from its standard `.pth` file, once with each resize.

    Raises `ValueError` where the file is missing or is not bit for bit the standard one.
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
        images = images.to(device)
        return {"inception": net.clean(images).cpu(), "inception_legacy": net.legacy(images).cpu()}

    record = {
        "inception": "FID Inception v3 (TensorFlow's of 2015-12-05), last pool, 2048 features",
        "sha256": INCEPTION_SHA256,
        "resize": {"fid, kid": CLEAN, "fid_legacy, kid_legacy": LEGACY},
        "kid": SUBSETS,
    }
    return FeatureNetwork(look, record)


def fetch_inception(cache: Path, *, task: Task) -> Path:
    """The standard Inception file in the folder `cache`, downloaded if it is not there yet.

    It appears there whole and checked, or not at all. Raises `ValueError` with the mend where it cannot be had.
    """
    file = cache / INCEPTION_URL.rpartition("/")[2]
    if file.is_file():
        return file
    try:
        cache.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=cache, prefix=".downloading-")
        try:
            with os.fdopen(handle, "wb") as aside:
                found = _download(INCEPTION_URL, aside, task("downloading Inception"))
            if found != INCEPTION_SHA256:
                raise OSError(f"what came has the SHA-256 {found[:8]}..., not {INCEPTION_SHA256[:8]}...")
            os.replace(name, file)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise ValueError(
            f"inception=auto: {INCEPTION_URL} cannot be downloaded ({error}); fetch it elsewhere and put it at {file}, "
            "or name your copy"
        ) from error
    return file


def _download(url: str, out: Any, progress: Callable[[int, int], None]) -> str:
    """Writes what `url` gives; its SHA-256."""
    digest, done = hashlib.sha256(), 0
    with urllib.request.urlopen(url, timeout=60) as answer:
        total = int(answer.headers.get("Content-Length") or 0)
        while part := answer.read(1 << 20):
            digest.update(part)
            out.write(part)
            done += len(part)
            progress(done, max(total, done))
    out.flush()
    os.fsync(out.fileno())
    return digest.hexdigest()


def sha256(file: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
