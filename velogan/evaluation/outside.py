"""What a run changes outside the objects of its held-out training pictures, where masks are kept beside these."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from velogan.config import read_config
from velogan.data.config import DataConfig
from velogan.data.sets.cache import open_domain
from velogan.data.sets.sources import Folder, Side, find_sources
from velogan.evaluation.each import MOST_DB
from velogan.evaluation.pictures import Pictures
from velogan.evaluation.scoring import Scorer, quiet
from velogan.metrics.outside import STRIPED, grown, stripes
from velogan.metrics.pixel import psnr
from velogan.translate.model import load_translator
from velogan.types import Direction


def outside(run: Path, *, device: torch.device | str = "cpu") -> dict[Direction, dict[str, float]]:
    """By direction: `psnr_outside_db`, the mean over pictures; `striped_outside`, the share of pictures with stripes
    there (`metrics.outside`); `images` that have a mask.

    Masks are `maskA` and `maskB` beside `trainA` and `trainB`, under the pictures' names, with any suffix. Empty where
    there are none, or no pictures are held out. The checkpoint is the one that `translate` takes.
    """
    config = read_config(run)
    sources = find_sources(config.data)
    scorer = Scorer(config.data, [], {}, None, 0, quiet)
    found: dict[Direction, dict[str, float]] = {}
    sides: dict[Direction, tuple[Side, Side]] = {"a2b": (sources.a, sources.b), "b2a": (sources.b, sources.a)}
    for way in config.method.directions:
        side, other = sides[way]
        masks = _masks(side, config.data)
        if not masks:
            continue
        held = replace(side, test=side.validation.named(masks), truth=None)  # pyright: ignore[reportOptionalMemberAccess]
        real = scorer.open(held, other)
        fakes = scorer.made(load_translator(run, direction=way, device=device), real, real.pictures.format, "")
        decibels, striped = [], []
        for number, name in enumerate(real.names):
            fake, given, mask = fakes.floats(number), real.pictures.floats(number), grown(masks[name])
            decibels.append(psnr(fake, given, ~mask).item())
            striped.append(stripes(fake, given, mask).item() > STRIPED)
        found[way] = {
            "psnr_outside_db": torch.tensor(decibels).clamp(max=MOST_DB).nanmean().item(),
            "striped_outside": fmean(striped),
            "images": len(striped),
        }
    return found


def _masks(side: Side, data: DataConfig) -> dict[str, Tensor]:
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
    pictures = Pictures.of(domain)
    of = {Path(name).stem: pictures.floats(number)[:, :1] > 0 for number, name in enumerate(domain.names)}
    return {name: of[Path(name).stem] for name in names if Path(name).stem in of}
