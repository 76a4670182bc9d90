"""Figures of single translations, before they are averaged over all pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from velogan.evaluation.pictures import Pictures, Real
from velogan.metrics.figures import compare_to_truth
from velogan.metrics.labels import confusion
from velogan.metrics.pixel import psnr, ssim, structure

_SMALLEST_SIDE = 11  # of pictures whose structure can be compared
MOST_DB = 60.0
"""The most that one picture's PSNR counts: an exact copy must not decide the mean."""


def of_translations(source: Real, fakes: Pictures) -> dict[str, Tensor]:
    """Figures by name, one value for each translation of the source's pictures, `(N,)`; NaN where there is none."""
    found: dict[str, Tensor] = {}

    def keep(name: str, index: int, value: Tensor) -> None:
        found.setdefault(name, torch.full((len(fakes),), math.nan, dtype=torch.float64))[index] = value

    for index in range(len(fakes)):
        fake, given = fakes.floats(index), source.pictures.floats(index)
        truth = source.answers.truths.get(index)
        if truth is not None and truth.shape == fake.shape:
            same = given if given.shape == fake.shape else None
            for name, value in compare_to_truth(fake, truth, same, source.answers.masks.get(index)).items():
                keep(name, index, value[0])
        if min(fake.shape[-2:]) >= _SMALLEST_SIDE:
            keep("structure", index, structure(fake, given)[0])
    return bounded(found)


def of_reconstructions(given: Pictures, backs: Pictures) -> dict[str, Tensor]:
    """Figures by name, one value for each reconstruction of the pictures `given`, `(N,)`."""
    pairs = [(backs.floats(index), given.floats(index)) for index in range(len(backs))]
    found = {"psnr_reconstruction_db": torch.tensor([psnr(*pair).item() for pair in pairs], dtype=torch.float64)}
    if all(min(back.shape[-2:]) >= _SMALLEST_SIDE for back, _ in pairs):
        found["ssim_reconstruction"] = torch.tensor([ssim(*pair).item() for pair in pairs], dtype=torch.float64)
    return bounded(found)


def unrelated_structure(source: Real, target: Real, seed: int) -> float | None:
    """The mean structure that pictures of the source share with random ones of the target; None if all are small."""
    order = torch.randperm(len(target.pictures), generator=torch.Generator().manual_seed(seed)).tolist()
    values = []
    for index in range(len(source.pictures)):
        given, other = source.pictures.floats(index), target.pictures.floats(order[index % len(order)])
        if min(given.shape[-2:]) >= _SMALLEST_SIDE:
            if other.shape[-2:] != given.shape[-2:]:
                other = functional.interpolate(other, size=given.shape[-2:], mode="bicubic", antialias=True)
            values.append(structure(other, given).item())
    return sum(values) / len(values) if values else None


def confusions(source: Real, fakes: Pictures, labels: Tensor) -> Tensor:
    """Confusion of labels for each translation that has a true one of its size and channels, `(N, K, K)`."""
    pairs = [(fakes.floats(index), truth) for index, truth in source.answers.truths.items()]
    found = [confusion(fake, truth, labels) for fake, truth in pairs if fake.shape == truth.shape]
    return torch.cat([torch.zeros(0, len(labels), len(labels), dtype=torch.float64), *found])


def bounded(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Figures `(N,)` by name with PSNRs of at most `MOST_DB`; these are as they are if all are infinite."""
    most = {name: MOST_DB if name.endswith("_db") and one.isfinite().any() else math.inf for name, one in found.items()}
    return {name: one.clamp(max=most[name]) for name, one in found.items()}
