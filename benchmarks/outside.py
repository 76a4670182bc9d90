"""Changes that a run makes outside the objects of its held-out training images, given by masks.

python -m benchmarks.outside RUN

Images are `(B, C, H, W)` in [-1, 1]; a mask is `(B, 1, H, W)`, true on objects.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor
from torch.nn import functional

from velogan.config import read_config
from velogan.data.config import DataConfig
from velogan.data.sets.cache import open_domain
from velogan.data.sets.sources import DomainSource, Folder, find_sources
from velogan.evaluation.images import ImageSet
from velogan.evaluation.per_image import MAX_PSNR_DB
from velogan.evaluation.scoring import Scorer, no_progress
from velogan.metrics.pixel import luminance, psnr
from velogan.translate.model import load_translator
from velogan.types import Direction

MARGIN = 1 / 32
"""Fraction of the shorter side by which masks are dilated, 8 pixels of 256: they are not exact at their edges."""

MIN_ADDED_CONTRAST = 0.15
"""Added contrast, of a range of 2, that counts as a stripe. At 256x256 real zebras have 0.25 to 0.5, their surroundings
0.04 to 0.24."""

MIN_STRIPED_AREA = 0.05
"""Fraction of the area outside masks that stripes of a striped picture cover."""

_WINDOWS = 16
"""Number of windows along the shorter side; contrast is measured within a window."""


def dilate(mask: Tensor) -> Tensor:
    """Dilate `mask` by `MARGIN` along rows and columns."""
    pixels = round(MARGIN * min(mask.shape[-2:]))
    return functional.max_pool2d(mask.float(), 2 * pixels + 1, stride=1, padding=pixels) > 0


def striped_fraction(fake: Tensor, source: Tensor, mask: Tensor) -> Tensor:
    """Return the fraction of the area outside `mask` where a translation has stripes that its input has not, `(B,)`.

    There the standard deviation of luminance within a window is more than `MIN_ADDED_CONTRAST` larger than in the
    input. Tints, shades and blur add none. NaN if `mask` is true everywhere.
    """
    striped = (_contrast(fake) - _contrast(source) > MIN_ADDED_CONTRAST) & ~mask
    return striped.sum((1, 2, 3)).double() / (~mask).sum((1, 2, 3))


def _contrast(images: Tensor) -> Tensor:
    bright = luminance(images.double())
    return _mean((bright - _mean(bright)).square()).clamp(min=0).sqrt()


def _mean(values: Tensor) -> Tensor:
    """Return the mean over the window around each pixel, within the image."""
    side = max(3, min(values.shape[-2:]) // _WINDOWS // 2 * 2 + 1)
    return functional.avg_pool2d(values, side, stride=1, padding=side // 2, count_include_pad=False)


def outside(run: Path, *, device: torch.device | str = "cpu") -> dict[Direction, dict[str, float]]:
    """Return by direction `psnr_outside_db`, the mean over pictures; `striped_outside`, the fraction of pictures with
    stripes there; and the number of `images` with a mask.

    Masks are `maskA` and `maskB` beside `trainA` and `trainB`, under the pictures' names, with any suffix. Empty if
    there are none, or no pictures are held out. Uses the default checkpoint of `translate`.
    """
    config = read_config(run)
    sources = find_sources(config.data)
    scorer = Scorer(config.data, [], {}, None, 0, no_progress)
    results: dict[Direction, dict[str, float]] = {}
    sides: dict[Direction, tuple[DomainSource, DomainSource]] = {
        "a2b": (sources.a, sources.b),
        "b2a": (sources.b, sources.a),
    }
    for direction in config.method.directions:
        side, other = sides[direction]
        masks = _masks(side, config.data)
        if not masks:
            continue
        held = replace(side, test=side.validation.select_names(masks), truth=None)  # pyright: ignore[reportOptionalMemberAccess]
        real = scorer.load(held, other)
        fakes = scorer.translate_all(
            load_translator(run, direction=direction, device=device), real, real.images.format, ""
        )
        decibels, striped = [], []
        for number, name in enumerate(real.names):
            fake, source, mask = fakes.to_batch(number), real.images.to_batch(number), dilate(masks[name])
            decibels.append(psnr(fake, source, ~mask).item())
            striped.append(striped_fraction(fake, source, mask).item() > MIN_STRIPED_AREA)
        results[direction] = {
            "psnr_outside_db": torch.tensor(decibels).clamp(max=MAX_PSNR_DB).nanmean().item(),
            "striped_outside": fmean(striped),
            "images": len(striped),
        }
    return results


def _masks(side: DomainSource, data: DataConfig) -> dict[str, Tensor]:
    """Return masks `(1, 1, H, W)` by the names of held-out pictures, prepared as these are."""
    if side.mask is None or side.validation is None:
        return {}
    files = {Path(name).stem: name for name in (path.name for path in side.mask.iterdir())}
    names = [name for name in side.validation.names if Path(name).stem in files]
    tested = side.test is not None and any(Path(name).stem in files for name in side.test.names)
    if tested or not names:  # masks of test pictures have names that training pictures may have, too
        return {}
    folder = Folder(side.mask, tuple(files[Path(name).stem] for name in names), filled=False)
    domain = open_domain(folder, data, test=True)
    pictures = ImageSet.from_domain(domain)
    masks = {Path(name).stem: pictures.to_batch(number)[:, :1] > 0 for number, name in enumerate(domain.names)}
    return {name: masks[Path(name).stem] for name in names if Path(name).stem in masks}


if __name__ == "__main__":
    print(json.dumps(outside(Path(sys.argv[1])), indent=1))
