"""Metrics of single translations, before they are averaged over all images."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from velogan.evaluation.images import DomainImages, ImageSet
from velogan.metrics.labels import confusion
from velogan.metrics.pixel import psnr, ssim, structure
from velogan.metrics.registry import compare_to_truth
from velogan.metrics.retrieval import edge_descriptors, retrieval

_MIN_SIDE = 11  # pixels: the window of SSIM
MAX_PSNR_DB = 60.0
"""Upper limit of one image's PSNR, so that an exact copy does not dominate the mean."""


def translation_metrics(source: DomainImages, fakes: ImageSet) -> dict[str, Tensor]:
    """Return metrics by name, `(N,)`: one value per translation of `source`, NaN if the metric does not apply to it."""
    metrics: dict[str, Tensor] = {}

    def record(name: str, index: int, value: Tensor) -> None:
        metrics.setdefault(name, torch.full((len(fakes),), math.nan, dtype=torch.float64))[index] = value

    for index in range(len(fakes)):
        fake, image = fakes.to_batch(index), source.images.to_batch(index)
        truth = source.ground_truth.truths.get(index)
        if truth is not None and truth.shape == fake.shape:
            background = image if image.shape == fake.shape else None
            for name, value in compare_to_truth(fake, truth, background, source.ground_truth.masks.get(index)).items():
                record(name, index, value[0])
        if min(fake.shape[-2:]) >= _MIN_SIDE:
            record("structure", index, structure(fake, image)[0])
    if len(fakes) > 1:
        edges = [
            torch.cat([edge_descriptors(images.to_batch(index)) for index in range(len(images))])
            for images in (fakes, source.images)
        ]
        metrics["retrieval"] = retrieval(*edges)
    return cap_psnr(metrics)


def reconstruction_metrics(images: ImageSet, reconstructions: ImageSet) -> dict[str, Tensor]:
    """Return metrics by name, `(N,)`: one value per reconstruction of `images`."""
    pairs = [(reconstructions.to_batch(index), images.to_batch(index)) for index in range(len(images))]
    metrics = {"psnr_reconstruction_db": torch.tensor([psnr(*pair).item() for pair in pairs], dtype=torch.float64)}
    if all(min(image.shape[-2:]) >= _MIN_SIDE for _, image in pairs):
        metrics["ssim_reconstruction"] = torch.tensor([ssim(*pair).item() for pair in pairs], dtype=torch.float64)
    return cap_psnr(metrics)


def unrelated_structure(source: DomainImages, target: DomainImages, seed: int) -> float | None:
    """Return the mean `structure` between images of `source` and random ones of `target`; None if all are too small."""
    order = torch.randperm(len(target.images), generator=torch.Generator().manual_seed(seed)).tolist()
    values = []
    for index in range(len(source.images)):
        image, other = source.images.to_batch(index), target.images.to_batch(order[index % len(order)])
        if min(image.shape[-2:]) >= _MIN_SIDE:
            if other.shape[-2:] != image.shape[-2:]:
                other = functional.interpolate(other, size=image.shape[-2:], mode="bicubic", antialias=True)
            values.append(structure(other, image).item())
    return sum(values) / len(values) if values else None


def label_confusions(source: DomainImages, fakes: ImageSet, labels: Tensor) -> Tensor:
    """Return confusion matrices `(N, K, K)` of the N translations with a known true translation of the same shape."""
    pairs = [(fakes.to_batch(index), truth) for index, truth in source.ground_truth.truths.items()]
    matrices = [confusion(fake, truth, labels) for fake, truth in pairs if fake.shape == truth.shape]
    return torch.cat([torch.zeros(0, len(labels), len(labels), dtype=torch.float64), *matrices])


def cap_psnr(metrics: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `metrics`, `(N,)` by name, with PSNRs limited to `MAX_PSNR_DB` if any value of the metric is finite."""
    limits = {
        name: MAX_PSNR_DB if name.endswith("_db") and values.isfinite().any() else math.inf
        for name, values in metrics.items()
    }
    return {name: values.clamp(max=limits[name]) for name, values in metrics.items()}
