"""Comparison of two folders of pictures, without a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from velogan.data.config import DataConfig
from velogan.data.pictures.images import read_picture
from velogan.data.pictures.values import normalize
from velogan.data.sets.pair import Task
from velogan.data.sets.sources import Folder, cache_directory, list_images
from velogan.evaluation.evaluate import FeatureChoice, check_arguments, load_networks, measurement_protocol
from velogan.evaluation.features import JUDGE, FeatureNetwork
from velogan.evaluation.images import random_subset
from velogan.evaluation.per_image import cap_psnr
from velogan.evaluation.scoring import distances_between_halves, finite_or_none, value_and_interval
from velogan.files import pluralize
from velogan.metrics.pixel import psnr, ssim
from velogan.metrics.registry import (
    Features,
    class_name,
    class_shares,
    describe,
    image_means,
    is_share,
    lower_is_better,
    sample_patches,
    set_distances,
)
from velogan.metrics.sliced import PATCH_PREFIX
from velogan.networks.pretrained import install_command

_BATCH_SIZE = 16
_MAX_VALUES = 2**26  # pixel values in memory at a time


def compare(
    folder: Path,
    against: Path,
    *,
    features: FeatureChoice = "none",
    inception: Path | Literal["auto"] | None = None,
    judges: Sequence[FeatureNetwork] = (),
    classes: Mapping[str, int] | None = None,
    limit: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    task: Task,
) -> dict[str, Any]:
    """Compute distances between the pictures below `folder` and `against`; return `protocol` and `scores`.

    Pictures with equal names and sizes are also compared pair by pair. Unreadable pictures are listed in the protocol.
    Nothing is written. The sliced Wasserstein distance needs no network; it is omitted if pictures differ in size.
    `features`, `inception`, `judges`, `classes`, `limit`, `seed`: as in `evaluate`.
    Raises ValueError with a hint if a folder or a file is missing, or no metric can be computed.
    """
    check_arguments(classes, features, judges, limit)
    cache = cache_directory(DataConfig())
    networks = [*load_networks(features, inception, cache, device=device, task=task), *judges]
    fakes, reals = (random_subset(_list_folder(path), limit, seed) for path in (Path(folder), Path(against)))
    skipped: list[dict[str, str]] = []
    fake, fake_names = _extract_features(fakes, networks, skipped, task)
    real, real_names = _extract_features(reals, networks, skipped, task)
    pairs = sorted(set(fake_names) & set(real_names))
    references = distances_between_halves(real, seed) | class_shares(real, classes or {}, seed=seed)
    metrics = image_means(_pair_metrics(fakes, reals, pairs), seed=seed)
    metrics |= set_distances(fake, real, seed=seed, resample=True) | class_shares(fake, classes or {}, seed=seed)
    if not metrics:
        raise ValueError(
            "against: pictures of different sizes can only be compared through a feature network; set "
            f"features={JUDGE} ({install_command(JUDGE)}) or inception (a file, or auto)"
        )
    scores = []
    for name, metric in metrics.items():
        reference = references.get(name)
        scores.append(
            {
                "name": name,
                **value_and_interval(metric),
                "real": None if reference is None else finite_or_none(reference.value),
                "baseline": None,
                "images_real": len(real_names) if metric.images is None else metric.images,
                "images_fake": len(fake_names) if metric.images is None else metric.images,
                "better": None if is_share(name) else "lower" if lower_is_better(name) else "higher",
                "description": describe(name, source="pictures", target=Path(against).name, classes=classes or {})
                + ".",
                **({"class": class_name(name, classes or {})} if is_share(name) else {}),
                "direction": None,
                "split": None,
                "weights": None,
                "checkpoint": None,
            }
        )
    protocol = {
        "folder": str(folder),
        "against": str(against),
        "images": {"folder": len(fake_names), "against": len(real_names), "equal_names": len(pairs)},
        "skipped": skipped,
        "pictures": "not preprocessed",
        "real": "one half of AGAINST compared with the other half: fewer pictures, so a little pessimistic",
        "baseline": "unknown: the inputs of the pictures are unknown",
        **measurement_protocol(networks, limit, seed),
    }
    return {"protocol": protocol, "scores": scores}


def _list_folder(path: Path) -> Folder:
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder; name a folder of pictures")
    names = list_images(path)
    if len(names) < 2:
        raise ValueError(
            f"{path} contains {pluralize(len(names), 'picture')}, but a distance needs at least two; "
            "name another folder"
        )
    return Folder(path, names)


def _extract_features(
    folder: Folder, networks: Sequence[FeatureNetwork], skipped: list[dict[str, str]], task: Task
) -> tuple[Features, list[str]]:
    """Return the features of a folder's pictures and their names; keep only one batch of pictures in memory.

    Appends unreadable pictures to `skipped`.
    """
    progress, names = task(f"extracting features of {folder.directory.name}"), []
    batches: dict[str, list[Tensor]] = {}
    shapes: set[torch.Size] = set()
    for batch in _read_batches(folder, skipped):
        images = torch.cat([image for _, image in batch])
        shapes.add(images.shape[1:])
        if len(shapes) == 1:
            for name, patches in sample_patches(images, total_images=len(folder.names)).items():
                batches.setdefault(name, []).append(patches)
        for network in networks:
            for name, features in network.extract(images).items():
                batches.setdefault(name, []).append(features)
        names += [name for name, _ in batch]
        progress(len(names) + len(skipped), len(folder.names))
    if len(names) < 2:
        reason = f", {skipped[-1]['name']}: {skipped[-1]['reason']}" if skipped else ""
        raise ValueError(f"{folder.directory} contains fewer than two readable pictures{reason}")
    if len(shapes) > 1:
        batches = {name: values for name, values in batches.items() if not name.startswith(PATCH_PREFIX)}
    return {name: torch.cat(values) for name, values in batches.items()}, names


def _read_batches(folder: Folder, skipped: list[dict[str, str]]) -> Iterator[list[tuple[str, Tensor]]]:
    """Yield batches of (name, image) in the order of `folder.names`; all images of a batch have one shape."""
    batch: list[tuple[str, Tensor]] = []
    for name in folder.names:
        try:
            image = _read(folder.directory / name)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            skipped.append({"name": str(folder.directory / name), "reason": reason})
            continue
        is_full = (len(batch) + 1) * image.numel() > _MAX_VALUES or len(batch) == _BATCH_SIZE
        if batch and (is_full or batch[-1][1].shape != image.shape):
            yield batch
            batch = []
        batch.append((name, image))
    if batch:
        yield batch


def _read(path: Path) -> Tensor:
    """Read a picture as `(1, C, H, W)` in [-1, 1], without alpha. Raises ValueError if it is too large."""
    pixels = read_picture(path).pixels
    if pixels.size > _MAX_VALUES:
        height, width, channels = pixels.shape
        limit = f"{_MAX_VALUES // channels / 1e6:.0f} million pixels"
        raise ValueError(f"{width}x{height} pixels are too many to compare: make it smaller than {limit}")
    return normalize(torch.from_numpy(pixels), None).permute(2, 0, 1)[None]


def _pair_metrics(fakes: Folder, reals: Folder, names: Sequence[str]) -> dict[str, Tensor]:
    """Compute PSNR in dB and SSIM, `(N,)` by metric, between the pictures `names` in both folders, pair by pair.

    NaN: the shapes differ, or, for SSIM, a side is below 11 pixels. Metrics that are NaN for all pairs are omitted.
    """
    metrics: dict[str, list[float]] = {"psnr_truth_db": [], "ssim_truth": []}
    for name in names:
        fake, real = _read(fakes.directory / name), _read(reals.directory / name)
        same_shape = fake.shape == real.shape
        metrics["psnr_truth_db"].append(psnr(fake, real).item() if same_shape else math.nan)
        metrics["ssim_truth"].append(ssim(fake, real).item() if same_shape and min(fake.shape[2:]) >= 11 else math.nan)
    known = {
        name: torch.tensor(values, dtype=torch.float64)
        for name, values in metrics.items()
        if not all(map(math.isnan, values))
    }
    return cap_psnr(known)
