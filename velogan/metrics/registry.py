"""All metrics of translations by name: how each is computed, whether higher is better, what it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

import torch
from torch import Tensor

from velogan.metrics.bootstrap import (
    MAX_IMAGES,
    MAX_IMAGES_FRECHET,
    Interval,
    draw_counts,
    percentile_interval,
    resampled_distances,
    resampled_means,
    resampled_sliced,
)
from velogan.metrics.distances import (
    frechet_distance,
    kernel_distance,
    weighted_frechet_distance,
    weighted_kernel_distance,
)
from velogan.metrics.labels import accuracy, mean_iou
from velogan.metrics.pixel import psnr, ssim
from velogan.metrics.sliced import PATCH_PREFIX, level_patches, patch_distances

Features = Mapping[str, Tensor]
"""Tensors of N images by name, on the CPU: features `(N, D)` under a network's name, its logits `(N, K)` under
NAME_logits, and patches `(N, P, C, pixels)` under the names that `sliced.level_patches` returns."""

NETWORKS = {"lite1": "EfficientNet-Lite1", "lite2": "EfficientNet-Lite2"}
"""Display names of feature networks; other networks are displayed by the name of their features."""

_LOGITS = "_logits"
_SHARE = "_share_class_"
SLICED = "sliced_wasserstein"
MAX_PATCHES = 2**15
"""Maximum number of patches per set and level; if a set has more than 256 images, fewer are drawn per image."""

SLICED_PROTOCOL = (
    f"mean over levels of a Laplacian pyramid; 128 patches of each picture and level, at most {MAX_PATCHES} of a set; "
    "512 directions; unit: standard deviation of real pixels; not for sets whose pictures differ in size"
)


@dataclass(frozen=True)
class MetricValue:
    """The value of a metric, with the results of a bootstrap over images.

    `interval_95`: bootstrap interval, None if unknown.
    `images`: number of images that were scored one by one; None for distances of sets and shares of classes.
    `resampled`: values `(R,)` of bootstrap resamples; equal seeds and counts draw equal resamples. Their mean may
    differ from the value: see `bootstrap.PROTOCOL`.
    """

    value: float
    interval_95: Interval | None = None
    images: int | None = None
    resampled: Tensor | None = field(default=None, compare=False, repr=False)


def set_distances(fake: Features, real: Features, *, seed: int, resample: bool = False) -> dict[str, MetricValue]:
    """Compute the sliced Wasserstein distance of two sets, and their Fréchet and kernel distance for each network.

    The sliced Wasserstein distance is omitted unless all images have one size, since patches are drawn per size.
    `seed`: of projections and bootstrap resamples. `resample`: whether to compute intervals, too.
    """
    metrics: dict[str, MetricValue] = _sliced_distance(fake, real, seed=seed, resample=resample)
    for network in (name for name in fake if not name.endswith(_LOGITS) and not name.startswith(PATCH_PREFIX)):
        x, y = fake[network], real[network]
        prefix = "" if network == "inception" else f"{network}_"
        resample_kernel = resample and max(len(x), len(y)) <= MAX_IMAGES
        resample_frechet = resample_kernel and min(len(x), len(y)) <= MAX_IMAGES_FRECHET
        for name, distance, weighted, is_resampled in (
            ("fid", frechet_distance, weighted_frechet_distance, resample_frechet),
            ("kid", kernel_distance, weighted_kernel_distance, resample_kernel),
        ):
            values = resampled_distances(weighted(x, y), len(x), len(y), seed=seed) if is_resampled else None
            metrics[f"{prefix}{name}"] = _with_interval(distance(x, y), values, shifted=name == "fid")
    return metrics


def _with_interval(
    value: float, resampled: Tensor | None, *, shifted: bool = False, images: int | None = None
) -> MetricValue:
    interval = None if resampled is None else percentile_interval(resampled, around=value if shifted else None)
    return MetricValue(value, interval, images, resampled)


def sample_patches(images: Tensor, *, total_images: int) -> Features:
    """Draw patches of `(B, C, H, W)` for the sliced Wasserstein distance; fewer of each if `total_images` is large."""
    return level_patches(images, patches=max(8, min(128, MAX_PATCHES // total_images)))


def _sliced_distance(fake: Features, real: Features, *, seed: int, resample: bool) -> dict[str, MetricValue]:
    """Return the sliced Wasserstein distance by name; empty unless both sets have patches of the same levels."""
    levels, real_levels = ([name for name in features if name.startswith(PATCH_PREFIX)] for features in (fake, real))
    x, y = [fake[name] for name in levels], [real[name] for name in real_levels]
    if not levels or levels != real_levels or x[0].shape[2:] != y[0].shape[2:]:
        return {}
    value = fmean(patch_distances(x, y, seed=seed))
    resampled = resampled_sliced(x, y, seed=seed) if resample else None
    return {SLICED: _with_interval(value, resampled, shifted=True)}


def class_shares(features: Features, classes: Mapping[str, int], *, seed: int) -> dict[str, MetricValue]:
    """Return, for each network with logits and each of `classes`, the share (0 to 1) of images with this top-1 class.

    The metrics are called `<network>_share_class_<index>`. `classes`: indices by name.
    Raises ValueError if an index is outside the network's classes.
    """
    metrics = {}
    for logits in (name for name in features if name.endswith(_LOGITS)):
        for index in classes.values():
            hits = is_top1(features[logits], index)
            share = _with_interval(hits.mean().item(), resampled_means(hits, seed=seed))
            metrics[f"{logits.removesuffix(_LOGITS)}{_SHARE}{index}"] = share
    return metrics


def is_top1(logits: Tensor, index: int) -> Tensor:
    """Return 1 for each row of logits `(N, classes)` with class `index` as the top-1 class, else 0: `(N,)` float64.

    Raises ValueError if the index is outside the classes.
    """
    if not 0 <= index < logits.shape[1]:
        raise ValueError(f"class {index} does not exist; choose a number from 0 to {logits.shape[1] - 1}")
    return (logits.argmax(dim=1) == index).double()


def is_share(name: str) -> bool:
    """Return whether the metric called `name` is the share of a class."""
    return _SHARE in name


def class_name(name: str, classes: Mapping[str, int]) -> str:
    """Return the name of the class whose share the metric `name` measures. `classes`: index by name."""
    return next(class_name for class_name, index in classes.items() if index == int(name.partition(_SHARE)[2]))


def compare_to_truth(fake: Tensor, truth: Tensor, inputs: Tensor | None, mask: Tensor | None) -> dict[str, Tensor]:
    """Compute PSNR in dB and SSIM of translations against their true translations, `(B,)` by name.

    `fake`, `truth`: `(B, C, H, W)` in [-1, 1].
    `inputs`: the same shape; None if the inputs have another number of channels.
    `mask`: `(B, 1, H, W)`, true on the object. With it the object is compared with the truth, and the background with
    the input; without it the full image is compared with the truth.
    """
    if mask is None:
        return {"psnr_truth_db": psnr(fake, truth), "ssim_truth": ssim(fake, truth)}
    background = {} if inputs is None else {"psnr_background_db": psnr(fake, inputs, ~mask)}
    return {"psnr_object_db": psnr(fake, truth, mask), "ssim_object": ssim(fake, truth, mask)} | background


def image_means(metrics: Mapping[str, Tensor], *, seed: int) -> dict[str, MetricValue]:
    """Return the mean over images of each metric, `(N,)` by name; images with NaN are left out."""
    return {
        name: _with_interval(
            values.nanmean().item(), resampled_means(values, seed=seed), images=int((~values.isnan()).sum())
        )
        for name, values in metrics.items()
    }


def label_metrics(confusions: Tensor, *, seed: int) -> dict[str, MetricValue]:
    """Compute label accuracy and IoU over all pixels from confusion matrices `(N, K, K)`; empty if N = 0."""
    if not len(confusions):
        return {}
    count, total = len(confusions), confusions.sum(dim=0)
    resampled = torch.einsum("rn,nij->rij", draw_counts(count, seed=seed), confusions)
    functions = {"label_accuracy": accuracy, "label_iou": mean_iou}
    return {
        name: _with_interval(function(total).item(), function(resampled) if count > 1 else None, images=count)
        for name, function in functions.items()
    }


def lower_is_better(name: str) -> bool:
    """Return whether lower values of the metric `name` are better. For class shares that depends on the direction."""
    return name == SLICED or name.rpartition("_")[2] in ("fid", "kid")


_DESCRIPTIONS = {
    "psnr_object_db": "Closeness (PSNR) of the object in translated {source} to the true one, inside its mask",
    "ssim_object": "Structural similarity (SSIM) of the object in translated {source} to the true one, 1 at best",
    "psnr_background_db": "Closeness (PSNR) of translated {source} to the input outside the object's mask",
    "psnr_truth_db": "Closeness (PSNR) of translated {source} to their true counterparts",
    "ssim_truth": "Structural similarity (SSIM) of translated {source} to their true counterparts, 1 at best",
    "psnr_reconstruction_db": "Closeness (PSNR) of encoded and decoded {source}, not translated, to the input",
    "ssim_reconstruction": "Structural similarity (SSIM) of encoded and decoded {source}, not translated, to the input",
    "structure": "How much of the input's layout translated {source} keep, whatever the colours, 1 for all of it",
    "retrieval": "How often translated {source} are more like their own input than like another, by coarse edges",
    "label_accuracy": "Share of pixels of translated {source} with the true label, by the nearest label's colour",
    "label_iou": "Overlap of translated {source} with the true areas of each label (intersection over union), "
    "mean over labels",
    "sliced_wasserstein": "Sliced Wasserstein distance of patches of translated {source} to those of real {target}",
    "fid": "Fréchet Inception distance (FID) of translated {source} to real {target}",
    "kid": "Kernel Inception distance (KID) of translated {source} to real {target}",
}

_FEATURE_DISTANCES = {
    "fid": "Fréchet distance of translated {source} to real {target} over {network} features",
    "kid": "Kernel distance of translated {source} to real {target} over {network} features",
}

METRIC_NAMES = (*_DESCRIPTIONS, *(f"{network}_{kind}" for network in NETWORKS for kind in _FEATURE_DISTANCES))
"""All metrics except shares of classes, which are named by their class."""


def describe(name: str, *, source: str, target: str, classes: Mapping[str, int]) -> str:
    """Return a phrase that says what the metric called `name` means for translations from `source` to `target`.

    `classes`: index by name, for shares of classes.
    """
    if name in _DESCRIPTIONS:
        return _DESCRIPTIONS[name].format(source=source, target=target)
    network, _, suffix = name.partition(_SHARE) if is_share(name) else name.rpartition("_")
    network = NETWORKS.get(network, network)
    if not is_share(name):
        return _FEATURE_DISTANCES[suffix].format(source=source, target=target, network=network)
    return f"Share of translated {source} that {network} classifies as {class_name(name, classes)} (class {suffix})"
