"""All figures of a translation, by name: against its truth, and as a set against a real set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from velogan.metrics.distances import frechet_distance, kernel_distance
from velogan.metrics.pixel import psnr, ssim
from velogan.metrics.squeezenet import share_of_class

SUBSETS = {"subsets": 100, "subset_size": 1000}
"""How squeeze-KID is averaged; a subset is as large as the smaller set where that has fewer."""


@dataclass(frozen=True)
class Seen:
    """What the network makes of N images: features `(N, 512)` and class logits `(N, 1000)`, on the CPU."""

    features: Tensor
    logits: Tensor

    def __getitem__(self, rows: Tensor) -> Seen:
        return Seen(self.features[rows], self.logits[rows])


def compare_sets(fake: Seen, real: Seen, *, seed: int) -> dict[str, float]:
    """squeeze-FID and squeeze-KID between two sets; `seed` draws the subsets."""
    kernel, _ = kernel_distance(fake.features, real.features, seed=seed, **SUBSETS)
    return {"squeeze_fid": frechet_distance(fake.features, real.features), "squeeze_kid": kernel}


def class_shares(seen: Seen, classes: Mapping[str, int]) -> dict[str, float]:
    """The share, 0 to 1, of a set in each class, as `share_class_<index>`; `classes` are indices by name."""
    return {f"share_class_{index}": share_of_class(seen.logits, index) for index in classes.values()}


def compare_to_truth(fake: Tensor, truth: Tensor, given: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """PSNR in dB and SSIM of translations against their truths, per image.

    All `(B, C, H, W)` in [-1, 1]; `given` are the inputs. With `mask`, `(B, 1, H, W)` and true on the object:
    the object against the truth, and the background against the input; without: the whole picture.
    """
    if mask is None:
        return {"psnr_truth_db": psnr(fake, truth), "ssim_truth": ssim(fake, truth)}
    return {
        "psnr_object_db": psnr(fake, truth, mask),
        "ssim_object": ssim(fake, truth, mask),
        "psnr_background_db": psnr(fake, given, ~mask),
    }


_MEANINGS = {
    "psnr_object_db": "Closeness of the object in translated {source} to the true one, inside its mask",
    "ssim_object": "Likeness in structure of the object in translated {source} to the true one, 1 at best",
    "psnr_background_db": "Closeness of translated {source} to the input outside the object's mask",
    "psnr_truth_db": "Closeness of translated {source} to their true counterparts",
    "ssim_truth": "Likeness in structure of translated {source} to their true counterparts, 1 at best",
    "squeeze_fid": "Fréchet distance of translated {source} to real {target} over SqueezeNet features",
    "squeeze_kid": "Kernel distance of translated {source} to real {target} over SqueezeNet features",
}


def meaning(name: str, *, source: str, target: str, classes: Mapping[str, int]) -> str:
    """What the figure called `name` says of translations from `source` to `target`, in a plain phrase."""
    for word, index in classes.items():
        if name == f"share_class_{index}":
            return f"Share of translated {source} that SqueezeNet takes for {word} (class {index})"
    return _MEANINGS[name].format(source=source, target=target)
