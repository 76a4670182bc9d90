"""Two folders of pictures against each other, without a run."""

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
from velogan.evaluation.each import bounded
from velogan.evaluation.evaluate import Features, check_asked, how_measured, load_networks
from velogan.evaluation.features import JUDGE, FeatureNetwork
from velogan.evaluation.pictures import sample
from velogan.evaluation.scoring import finite, halves, value_of
from velogan.files import pluralize
from velogan.metrics.figures import (
    Seen,
    class_shares,
    distances,
    is_share,
    lower_is_better,
    meaning,
    means,
    patches_of,
)
from velogan.metrics.pixel import psnr, ssim
from velogan.metrics.sliced import PATCHES
from velogan.networks.pretrained import package

_BATCH_SIZE = 16
_MOST_VALUES = 2**26  # of the pictures in memory at one time


def compare(
    folder: Path,
    against: Path,
    *,
    features: Features = "none",
    inception: Path | Literal["auto"] | None = None,
    judges: Sequence[FeatureNetwork] = (),
    classes: Mapping[str, int] | None = None,
    limit: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    task: Task,
) -> dict[str, Any]:
    """Distances of the pictures below `folder` to those below `against`; `protocol` and `scores` as `evaluate` gives.

    Pictures of equal names and sizes are compared one by one as well. Pictures that cannot be read are listed in the
    protocol. Nothing is written. The sliced Wasserstein distance needs no network; it is left out if the pictures are
    not all of one size. `features`, `inception`, `judges`, `classes`, `limit`, `seed`: as in `evaluate`.
    Raises `ValueError` with the mend if a folder or a file is missing, or nothing could be measured.
    """
    check_asked(classes, features, judges, limit)
    cache = cache_directory(DataConfig())
    networks = [*load_networks(features, inception, cache, device=device, task=task), *judges]
    fakes, reals = (sample(_folder(path), limit, seed) for path in (Path(folder), Path(against)))
    skipped: list[dict[str, str]] = []
    fake, fake_names = _look(fakes, networks, skipped, task)
    real, real_names = _look(reals, networks, skipped, task)
    pairs = sorted(set(fake_names) & set(real_names))
    bounds = halves(real, seed) | class_shares(real, classes or {}, seed=seed)
    figures = distances(fake, real, seed=seed, resample=True) | class_shares(fake, classes or {}, seed=seed)
    figures = means(_paired(fakes, reals, pairs), seed=seed) | figures
    if not figures:
        raise ValueError(
            "against: pictures of several sizes can be compared through a feature network alone; set "
            f"features={JUDGE} ({package(JUDGE)}) or inception (a file, or auto)"
        )
    scores = []
    for name, figure in figures.items():
        bound = bounds.get(name)
        scores.append(
            {
                "name": name,
                **value_of(figure),
                "real": None if bound is None else finite(bound.value),
                "baseline": None,
                "images_real": len(real_names) if figure.images is None else figure.images,
                "images_fake": len(fake_names) if figure.images is None else figure.images,
                "better": None if is_share(name) else "lower" if lower_is_better(name) else "higher",
                "what": meaning(name, source="pictures", target=Path(against).name, classes=classes or {}) + ".",
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
        "pictures": "as they are",
        "real": "what one half of AGAINST scores against the other half: fewer pictures, so a little pessimistic",
        "baseline": "unknown: nothing says what the pictures were made from",
        **how_measured(networks, limit, seed),
    }
    return {"protocol": protocol, "scores": scores}


def _folder(path: Path) -> Folder:
    if not path.is_dir():
        raise ValueError(f"{path} is no folder: name a folder of pictures")
    names = list_images(path)
    if len(names) < 2:
        raise ValueError(
            f"{path} holds {pluralize(len(names), 'picture')}: a distance needs at least two; name another folder"
        )
    return Folder(path, names)


def _look(
    folder: Folder, networks: Sequence[FeatureNetwork], skipped: list[dict[str, str]], task: Task
) -> tuple[Seen, list[str]]:
    """The features of a folder's pictures, and their names. Few pictures are in memory at one time."""
    progress, names = task(f"looking at {folder.directory.name}"), []
    found: dict[str, list[Tensor]] = {}
    shapes: set[torch.Size] = set()
    for batch in _batches(folder, skipped):
        images = torch.cat([image for _, image in batch])
        shapes.add(images.shape[1:])
        if len(shapes) == 1:
            for name, values in patches_of(images, among=len(folder.names)).items():
                found.setdefault(name, []).append(values)
        for network in networks:
            for name, values in network.look(images).items():
                found.setdefault(name, []).append(values)
        names += [name for name, _ in batch]
        progress(len(names) + len(skipped), len(folder.names))
    if len(names) < 2:
        reason = f", {skipped[-1]['name']}: {skipped[-1]['reason']}" if skipped else ""
        raise ValueError(f"{folder.directory} holds fewer than two pictures that can be read{reason}")
    kept = {name: values for name, values in found.items() if len(shapes) == 1 or not name.startswith(PATCHES)}
    return {name: torch.cat(values) for name, values in kept.items()}, names


def _batches(folder: Folder, skipped: list[dict[str, str]]) -> Iterator[list[tuple[str, Tensor]]]:
    """Pictures in the order of their names, consecutive ones of equal shape together."""
    batch: list[tuple[str, Tensor]] = []
    for name in folder.names:
        try:
            image = _read(folder.directory / name)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            skipped.append({"name": str(folder.directory / name), "reason": reason})
            continue
        full = (len(batch) + 1) * image.numel() > _MOST_VALUES or len(batch) == _BATCH_SIZE
        if batch and (full or batch[-1][1].shape != image.shape):
            yield batch
            batch = []
        batch.append((name, image))
    if batch:
        yield batch


def _read(path: Path) -> Tensor:
    """One picture as `(1, C, H, W)` in [-1, 1], without its alpha."""
    pixels = read_picture(path).pixels
    if pixels.size > _MOST_VALUES:
        height, width, channels = pixels.shape
        most = f"{_MOST_VALUES // channels / 1e6:.0f} million pixels"
        raise ValueError(
            f"{width}x{height} pixels are too many to be compared as they are: make it smaller than {most}"
        )
    return normalize(torch.from_numpy(pixels), None).permute(2, 0, 1)[None]


def _paired(fakes: Folder, reals: Folder, names: Sequence[str]) -> dict[str, Tensor]:
    """PSNR, at most `each.MOST_DB`, and SSIM of pictures of equal names, NaN if the sizes differ; empty if all do."""
    found: dict[str, list[float]] = {"psnr_truth_db": [], "ssim_truth": []}
    for name in names:
        one, other = _read(fakes.directory / name), _read(reals.directory / name)
        same = one.shape == other.shape
        found["psnr_truth_db"].append(psnr(one, other).item() if same else math.nan)
        found["ssim_truth"].append(ssim(one, other).item() if same and min(one.shape[2:]) >= 11 else math.nan)
    known = {
        name: torch.tensor(values, dtype=torch.float64)
        for name, values in found.items()
        if not all(map(math.isnan, values))
    }
    return bounded(known)
