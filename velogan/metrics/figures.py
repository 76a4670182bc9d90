"""All figures of translations by name: how each is measured, whether higher is better, what it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

import torch
from torch import Tensor

from velogan.metrics.bootstrap import (
    MOST_IMAGES,
    MOST_RESAMPLED,
    Interval,
    interval,
    resampled_distances,
    resampled_means,
    resampled_sliced,
    times,
)
from velogan.metrics.distances import frechet_distance, frechet_of, kernel_distance, kernel_of
from velogan.metrics.labels import accuracy, mean_iou
from velogan.metrics.pixel import psnr, ssim
from velogan.metrics.sliced import PATCHES, distances_of_patches, level_patches

Seen = Mapping[str, Tensor]
"""Features and more of N images, on the CPU: features `(N, D)` by a network's name, its logits `(N, K)` by NAME_logits,
and patches `(N, P, C, pixels)` as `sliced.level_patches` names them."""

NETWORKS = {"lite1": "EfficientNet-Lite1", "lite2": "EfficientNet-Lite2"}
"""Long names of feature networks; any other network is called what its features are called."""

_LOGITS = "_logits"
_SHARE = "_share_class_"
SLICED = "sliced_wasserstein"
MOST_PATCHES = 2**15
"""The most patches of one set and level; of more than 256 images, fewer patches are taken of each."""

SLICED_PROTOCOL = (
    f"mean over levels of a Laplacian pyramid; 128 patches of each picture and level, at most {MOST_PATCHES} of a set; "
    "512 directions; unit: standard deviation of real pixels; not for sets whose pictures differ in size"
)


@dataclass(frozen=True)
class Figure:
    """A figure, how it varies with other images (None where unknown), and of how many images it is a mean.

    `images`: None where the figure is of all, as of two sets that it compares.
    `resampled` are its values `(R,)` over images drawn again; equal seeds and counts draw the same images. Their mean
    may lie beside the figure: see `bootstrap.PROTOCOL`.
    """

    value: float
    interval_95: Interval | None = None
    images: int | None = None
    resampled: Tensor | None = field(default=None, compare=False, repr=False)


def distances(fake: Seen, real: Seen, *, seed: int, resample: bool = False) -> dict[str, Figure]:
    """The sliced Wasserstein distance between two sets, and Fréchet and kernel distances over all features there are.

    Pictures of several sizes have no sliced Wasserstein distance. `seed` draws directions and resamples.
    """
    figures: dict[str, Figure] = _sliced(fake, real, seed=seed, resample=resample)
    for features in (name for name in fake if not name.endswith(_LOGITS) and not name.startswith(PATCHES)):
        x, y = fake[features], real[features]
        prefix = "" if features == "inception" else f"{features}_"
        of_frechet, of_kernel = f"{prefix}fid", f"{prefix}kid"
        bounded = resample and max(len(x), len(y)) <= MOST_RESAMPLED
        affordable = bounded and min(len(x), len(y)) <= MOST_IMAGES
        others = resampled_distances(frechet_of(x, y), len(x), len(y), seed=seed) if affordable else None
        figures[of_frechet] = _figure(frechet_distance(x, y), others, shifted=True)
        others = resampled_distances(kernel_of(x, y), len(x), len(y), seed=seed) if bounded else None
        figures[of_kernel] = _figure(kernel_distance(x, y), others)
    return figures


def _figure(value: float, resampled: Tensor | None, *, shifted: bool = False, images: int | None = None) -> Figure:
    span = None if resampled is None else interval(resampled, around=value if shifted else None)
    return Figure(value, span, images, resampled)


def patches_of(images: Tensor, *, among: int) -> Seen:
    """Patches for the sliced Wasserstein distance, of some images `(B, C, H, W)` of a set of `among`."""
    return level_patches(images, patches=max(8, min(128, MOST_PATCHES // among)))


def _sliced(fake: Seen, real: Seen, *, seed: int, resample: bool) -> dict[str, Figure]:
    levels, others = ([name for name in seen if name.startswith(PATCHES)] for seen in (fake, real))
    x, y = [fake[name] for name in levels], [real[name] for name in others]
    if not levels or levels != others or x[0].shape[2:] != y[0].shape[2:]:
        return {}
    value = fmean(distances_of_patches(x, y, seed=seed))
    resampled = resampled_sliced(x, y, seed=seed) if resample else None
    return {SLICED: _figure(value, resampled, shifted=True)}


def class_shares(seen: Seen, classes: Mapping[str, int], *, seed: int) -> dict[str, Figure]:
    """The share, 0 to 1, of a set in each class (top-1) by each network that classifies; `classes`: indices by name.

    The figures are called `<network>_share_class_<index>`. Raises `ValueError` for an index outside the classes.
    """
    figures = {}
    for logits in (name for name in seen if name.endswith(_LOGITS)):
        for index in classes.values():
            hits = in_class(seen[logits], index)
            share = _figure(hits.mean().item(), resampled_means(hits, seed=seed))
            figures[f"{logits.removesuffix(_LOGITS)}{_SHARE}{index}"] = share
    return figures


def in_class(logits: Tensor, index: int) -> Tensor:
    """Return which of `(N, classes)` logits have class `index` as their largest (top-1): `(N,)` float64, 0 or 1.

    Raises ValueError if the index is outside the classes.
    """
    if not 0 <= index < logits.shape[1]:
        raise ValueError(f"class {index} does not exist: give a number from 0 to {logits.shape[1] - 1}")
    return (logits.argmax(dim=1) == index).double()


def is_share(name: str) -> bool:
    """Whether the figure called `name` is the share of a class."""
    return _SHARE in name


def compare_to_truth(fake: Tensor, truth: Tensor, given: Tensor | None, mask: Tensor | None) -> dict[str, Tensor]:
    """PSNR in dB and SSIM of translations against their truths, per image.

    All `(B, C, H, W)` in [-1, 1]; `given` are the inputs, None if they have other channels. With `mask`,
    `(B, 1, H, W)` and true on the object: the object against the truth, and the background against the input;
    without: the whole picture.
    """
    if mask is None:
        return {"psnr_truth_db": psnr(fake, truth), "ssim_truth": ssim(fake, truth)}
    background = {} if given is None else {"psnr_background_db": psnr(fake, given, ~mask)}
    return {"psnr_object_db": psnr(fake, truth, mask), "ssim_object": ssim(fake, truth, mask)} | background


def means(values: Mapping[str, Tensor], *, seed: int) -> dict[str, Figure]:
    """Means of figures that images have one by one, `(N,)` by name; NaN stands for an image that has none."""
    return {
        name: _figure(one.nanmean().item(), resampled_means(one, seed=seed), images=int((~one.isnan()).sum()))
        for name, one in values.items()
    }


def label_figures(confusions: Tensor, *, seed: int) -> dict[str, Figure]:
    """Agreement of label maps over all pixels of all images, of `(N, K, K)` confusions; none of no image."""
    if not len(confusions):
        return {}
    count, whole = len(confusions), confusions.sum(dim=0)
    resampled = torch.einsum("rn,nij->rij", times(count, seed=seed), confusions)
    measures = {"label_accuracy": accuracy, "label_iou": mean_iou}
    return {
        name: _figure(of(whole).item(), of(resampled) if count > 1 else None, images=count)
        for name, of in measures.items()
    }


def lower_is_better(name: str) -> bool:
    """Whether the figure called `name` is a distance. For class shares it depends on the direction."""
    return name == SLICED or name.rpartition("_")[2] in ("fid", "kid")


_MEANINGS = {
    "psnr_object_db": "Closeness (PSNR) of the object in translated {source} to the true one, inside its mask",
    "ssim_object": "Structural similarity (SSIM) of the object in translated {source} to the true one, 1 at best",
    "psnr_background_db": "Closeness (PSNR) of translated {source} to the input outside the object's mask",
    "psnr_truth_db": "Closeness (PSNR) of translated {source} to their true counterparts",
    "ssim_truth": "Structural similarity (SSIM) of translated {source} to their true counterparts, 1 at best",
    "psnr_reconstruction_db": "Closeness (PSNR) of encoded and decoded {source}, not translated, to the input",
    "ssim_reconstruction": "Structural similarity (SSIM) of encoded and decoded {source}, not translated, to the input",
    "structure": "How much of the input's layout translated {source} keep, whatever the colours, 1 for all of it",
    "label_accuracy": "Share of pixels of translated {source} with the true label, by the nearest label's colour",
    "label_iou": "Overlap of translated {source} with the true areas of each label (intersection over union), "
    "mean over labels",
    "sliced_wasserstein": "Sliced Wasserstein distance of patches of translated {source} to those of real {target}",
    "fid": "Fréchet Inception distance (FID) of translated {source} to real {target}",
    "kid": "Kernel Inception distance (KID) of translated {source} to real {target}",
}

_OVER_FEATURES = {
    "fid": "Fréchet distance of translated {source} to real {target} over {network} features",
    "kid": "Kernel distance of translated {source} to real {target} over {network} features",
}

NAMES = (*_MEANINGS, *(f"{network}_{kind}" for network in NETWORKS for kind in _OVER_FEATURES))
"""All figures but shares of classes, which are named by their class."""


def meaning(name: str, *, source: str, target: str, classes: Mapping[str, int]) -> str:
    """What the figure called `name` says of translations from `source` to `target`, in a plain phrase."""
    if name in _MEANINGS:
        return _MEANINGS[name].format(source=source, target=target)
    network, _, last = name.partition(_SHARE) if is_share(name) else name.rpartition("_")
    network = NETWORKS.get(network, network)
    if not is_share(name):
        return _OVER_FEATURES[last].format(source=source, target=target, network=network)
    word = next(word for word, index in classes.items() if index == int(last))
    return f"Share of translated {source} that {network} takes for {word} (class {last})"
