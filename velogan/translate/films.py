"""Translating films: frame by frame, and with less flicker where the input stands still."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from velogan import __version__
from velogan.data.pictures.films import SUFFIXES, count_frames, is_film, rewrite_film
from velogan.data.pictures.images import Picture
from velogan.data.pictures.values import to_channels
from velogan.files import atomic_write, looks_like_file_name, require
from velogan.translate.jobs import escape_unprintable, name_write_errors
from velogan.translate.large import Settings, plan_tiles
from velogan.translate.model import Translator
from velogan.translate.pictures import output_format, translate_planned
from velogan.translate.summary import Summary, describe_error
from velogan.types import Progress

STILL_THRESHOLD = 0.02
"""How far, of the range from black to white, a place's mean colour may move while it counts as still, roughly."""

_PATCH = 5  # side of a place in pixels: noise is no movement


def translate_film(
    model: Translator,
    source: Path,
    target: Path,
    settings: Settings,
    *,
    smooth: float,
    progress: Progress | None = None,
) -> Summary:
    """Translate one film into `target`, a film or a folder; the summary counts it as one.

    `smooth`, from 0 to less than 1: the share of what was shown before, where the input stands still, see `Smoother`.
    `progress(done, total)` counts frames. ValueError with the mend if the film would be overwritten, or cannot be
    translated at all.
    """
    require("video", "av", user="a film")
    started = time.perf_counter()
    smoother = Smoother(smooth)
    name = escape_unprintable(source.name)
    if target.is_dir() or not is_film(target):
        if looks_like_file_name(target):
            raise ValueError(f"output {target} is no film: name a folder, or a file that ends in {', '.join(SUFFIXES)}")
        target = target / source.name
    if os.path.realpath(source) == os.path.realpath(target):
        raise ValueError(f"output {target} is the input itself: name another file or folder")
    done, skipped, failed = 0, 0, []
    if not settings.overwrite and os.path.lexists(target):
        skipped = 1
    else:
        try:
            done = _translate(model, source, target, settings, smoother=smoother, progress=progress)
        except (RuntimeError, ValueError, MemoryError, OSError) as error:
            failed.append((name, describe_error(error)))
    seconds = time.perf_counter() - started
    return Summary(int(done > 0), skipped, tuple(failed), 0, (), seconds, frames=done)


def _translate(
    model: Translator,
    source: Path,
    target: Path,
    settings: Settings,
    *,
    smoother: Smoother,
    progress: Progress | None,
) -> int:
    if not source.is_file():
        raise ValueError("not a regular file")
    total = count_frames(source) if progress else 0

    def change(frames: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        both = translate_frames(model, frames, settings, scratch=target.parent)
        shown = 0
        for shown, (given, made) in enumerate(both, start=1):
            yield smoother(given, made)
            if progress:
                progress(shown, max(total, shown))
        if progress:
            progress(shown, shown)  # what a film says of its length is not exact

    comment = f"Synthetic: translated by velogan {__version__}"
    with name_write_errors(target), atomic_write(target) as tmp_path:
        return rewrite_film(source, tmp_path, change, suffix=target.suffix.lower(), comment=comment)


def translate_frames(
    model: Translator, frames: Iterable[np.ndarray], settings: Settings, *, scratch: Path
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Each frame, `(H, W, 3)` uint8, with its translation of the same shape."""
    frames = iter(frames)
    first = next(frames, None)
    if first is None:
        return
    height, width = first.shape[:2]
    if output_format(model, Picture(first)).dtype != "uint8":
        raise ValueError("the run writes deeper values than a film's 8 bits: translate single pictures")
    tiles = plan_tiles(model, height, width, tile=settings.tile)
    frames = chain([first], frames)
    while some := list(islice(frames, settings.together(tiles, height * width))):
        given = [Picture(one.copy() if tiles else one) for one in some]  # tiles are written into what is given
        made = translate_planned(model, given, tiles, scratch=scratch)
        yield from zip(some, (to_channels(one.pixels, 3) for one in made))


class Smoother:
    """Blends each translated frame with what was shown before it, where the input did not change.

    A place's colour is its mean over a few pixels, so that noise is no change, and is compared with the input that
    belongs to what was shown: the same blend of earlier frames. So what fades slowly is followed, too. No flow is
    estimated: what moves is shown as the network has it.
    """

    def __init__(self, share: float):
        if not 0 <= share < 1:
            raise ValueError(f"smooth={share}: it takes a number from 0 to less than 1")
        self._share = share
        self._before: tuple[Tensor, Tensor] | None = None

    def __call__(self, given: np.ndarray, made: np.ndarray) -> np.ndarray:
        """The frame to show for the input `given` and its translation `made`, all `(H, W, 3)` uint8."""
        if not self._share:
            return made
        now, result = (torch.from_numpy(one).permute(2, 0, 1)[None].float() / 255 for one in (given, made))
        if self._before is not None:
            then, shown = self._before
            weight = self._share * _measure_stillness(now - then)
            now, result = torch.lerp(now, then, weight), torch.lerp(result, shown, weight)
        self._before = now, result
        return (result[0].permute(1, 2, 0) * 255).round().to(torch.uint8).numpy()


def _measure_stillness(difference: Tensor) -> Tensor:
    """`(1, 1, H, W)` from 0, moved, to 1, still, of the difference `(1, 3, H, W)` of two inputs in [0, 1]."""
    mean = F.avg_pool2d(difference, _PATCH, stride=1, padding=_PATCH // 2, count_include_pad=False)
    return torch.exp(-((mean.abs().amax(dim=1, keepdim=True) / STILL_THRESHOLD) ** 2))
