"""What a run changes outside the objects of its held-out training images, whose masks are beside them.

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

GROWN = 1 / 32
"""The share of the shorter side by which masks are grown, 8 pixels of 256: they are not exact at their edges."""

GAINED = 0.15
"""So much more contrast, of a range of 2, is a stripe. At 256x256 real zebras have 0.25 to 0.5, what is around them
0.04 to 0.24."""

STRIPED = 0.05
"""A picture has stripes outside where they cover more than this share of what is outside."""

_WINDOWS = 16
"""So many windows lie side by side along the shorter side; contrast is measured within one."""


def grown(mask: Tensor) -> Tensor:
    """`mask` with all that is as near to it as `GROWN` says, along rows and columns."""
    pixels = round(GROWN * min(mask.shape[-2:]))
    return functional.max_pool2d(mask.float(), 2 * pixels + 1, stride=1, padding=pixels) > 0


def stripes(fake: Tensor, given: Tensor, mask: Tensor) -> Tensor:
    """The share of what is outside `mask` where a translation has stripes that its input has not, `(B,)`.

    There the standard deviation of brightness around its mean over a window, of a sixteenth of the shorter side, is
    more than `GAINED` larger than in the input: what alternates within a window. Tints, shades and blur add none.
    NaN where `mask` is true everywhere.
    """
    gained = (_contrast(fake) - _contrast(given) > GAINED) & ~mask
    return gained.sum((1, 2, 3)).double() / (~mask).sum((1, 2, 3))


def _contrast(images: Tensor) -> Tensor:
    bright = luminance(images.double())
    return _mean((bright - _mean(bright)).square()).clamp(min=0).sqrt()


def _mean(values: Tensor) -> Tensor:
    """The mean over the window around each pixel, without what lies beyond the border."""
    side = max(3, min(values.shape[-2:]) // _WINDOWS // 2 * 2 + 1)
    return functional.avg_pool2d(values, side, stride=1, padding=side // 2, count_include_pad=False)


def outside(run: Path, *, device: torch.device | str = "cpu") -> dict[Direction, dict[str, float]]:
    """By direction: `psnr_outside_db`, the mean over pictures; `striped_outside`, the share of pictures with stripes
    there; `images` that have a mask.

    Masks are `maskA` and `maskB` beside `trainA` and `trainB`, under the pictures' names, with any suffix. Empty where
    there are none, or no pictures are held out. The checkpoint is the one that `translate` takes.
    """
    config = read_config(run)
    sources = find_sources(config.data)
    scorer = Scorer(config.data, [], {}, None, 0, no_progress)
    found: dict[Direction, dict[str, float]] = {}
    sides: dict[Direction, tuple[DomainSource, DomainSource]] = {
        "a2b": (sources.a, sources.b),
        "b2a": (sources.b, sources.a),
    }
    for way in config.method.directions:
        side, other = sides[way]
        masks = _masks(side, config.data)
        if not masks:
            continue
        held = replace(side, test=side.validation.select_names(masks), truth=None)  # pyright: ignore[reportOptionalMemberAccess]
        real = scorer.load(held, other)
        fakes = scorer.translate_all(load_translator(run, direction=way, device=device), real, real.images.format, "")
        decibels, striped = [], []
        for number, name in enumerate(real.names):
            fake, given, mask = fakes.to_batch(number), real.images.to_batch(number), grown(masks[name])
            decibels.append(psnr(fake, given, ~mask).item())
            striped.append(stripes(fake, given, mask).item() > STRIPED)
        found[way] = {
            "psnr_outside_db": torch.tensor(decibels).clamp(max=MAX_PSNR_DB).nanmean().item(),
            "striped_outside": fmean(striped),
            "images": len(striped),
        }
    return found


def _masks(side: DomainSource, data: DataConfig) -> dict[str, Tensor]:
    """`(1, 1, H, W)` by the names of held-out pictures that have one, prepared as these are."""
    if side.mask is None or side.validation is None:
        return {}
    there = {Path(name).stem: name for name in (path.name for path in side.mask.iterdir())}
    names = [name for name in side.validation.names if Path(name).stem in there]
    tested = side.test is not None and any(Path(name).stem in there for name in side.test.names)
    if tested or not names:  # masks of test pictures have names that training pictures may have, too
        return {}
    found = Folder(side.mask, tuple(there[Path(name).stem] for name in names), filled=False)
    domain = open_domain(found, data, test=True)
    pictures = ImageSet.of(domain)
    of = {Path(name).stem: pictures.to_batch(number)[:, :1] > 0 for number, name in enumerate(domain.names)}
    return {name: of[Path(name).stem] for name in names if Path(name).stem in of}


if __name__ == "__main__":
    print(json.dumps(outside(Path(sys.argv[1])), indent=1))
