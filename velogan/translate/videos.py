"""Translate videos frame by frame, with less flicker where the input is static."""

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

from velogan.data.pictures.images import Picture
from velogan.data.pictures.values import to_channels
from velogan.data.pictures.videos import SUFFIXES, count_frames, is_video, rewrite_video
from velogan.files import __version__, atomic_write, looks_like_file_name, require
from velogan.translate.jobs import escape_unprintable, reraise_with_target
from velogan.translate.large import plan_tiles
from velogan.translate.model import Translator
from velogan.translate.options import TranslateOptions
from velogan.translate.pictures import output_format, translate_pictures
from velogan.translate.summary import Summary, describe_error, find_stale
from velogan.types import Progress

STILL_THRESHOLD = 0.02
"""Change of a patch's mean colour, as a fraction of the range from black to white, up to which it is static."""

_PATCH = 5  # side in pixels: the mean of a patch is hardly changed by noise


def translate_video(
    model: Translator,
    source: Path,
    target: Path,
    options: TranslateOptions,
    *,
    progress: Progress | None = None,
) -> Summary:
    """Translate one video into `target`, a video or a folder; the summary counts it as one file.

    `progress(done, total)` counts frames. Raises ValueError, with the fix, if the video would be overwritten, or
    `target` is not a video.
    """
    require("video", "av", feature="a video")
    started_at = time.perf_counter()
    smoother = Smoother(options.smooth)
    name = escape_unprintable(source.name)
    if target.is_dir() or not is_video(target):
        if looks_like_file_name(target):
            raise ValueError(
                f"output {target} is not a video: name a folder, or a file that ends in {', '.join(SUFFIXES)}"
            )
        target = target / source.name
    if os.path.realpath(source) == os.path.realpath(target):
        raise ValueError(f"output {target} is the input itself: name another file or folder")
    frames, skipped = 0, 0
    failed = []
    if not options.overwrite and os.path.lexists(target):
        skipped = 1
    else:
        try:
            frames = _translate(model, source, target, options, smoother=smoother, progress=progress)
        except (RuntimeError, ValueError, MemoryError, OSError) as error:
            failed.append((name, describe_error(error)))
    stale = find_stale(model.file, [target] * skipped)
    seconds = time.perf_counter() - started_at
    return Summary(int(frames > 0), skipped, tuple(failed), seconds=seconds, frames=frames, stale=stale)


def _translate(
    model: Translator,
    source: Path,
    target: Path,
    options: TranslateOptions,
    *,
    smoother: Smoother,
    progress: Progress | None,
) -> int:
    if not source.is_file():
        raise ValueError("not a regular file")
    total = count_frames(source) if progress else 0

    def change(frames: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        pairs = translate_frames(model, frames, options, scratch=target.parent)
        done = 0
        for done, (frame, translated) in enumerate(pairs, start=1):
            yield smoother(frame, translated)
            if progress:
                progress(done, max(total, done))
        if progress:
            progress(done, done)  # the length that a video states is not exact

    comment = f"Synthetic: translated by velogan {__version__}"
    with reraise_with_target(target), atomic_write(target) as tmp_path:
        return rewrite_video(source, tmp_path, change, suffix=target.suffix.lower(), comment=comment)


def translate_frames(
    model: Translator, frames: Iterable[np.ndarray], options: TranslateOptions, *, scratch: Path
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield each frame, `(H, W, 3)` uint8, with its translation of the same shape."""
    frames = iter(frames)
    first = next(frames, None)
    if first is None:
        return
    height, width = first.shape[:2]
    if output_format(model, Picture(first)).dtype != "uint8":
        raise ValueError("the run writes values of more than the 8 bits of a video: translate single pictures")
    tiles = plan_tiles(model, height, width, tile=options.tile)
    frames = chain([first], frames)
    while batch := list(islice(frames, options.images_per_batch(model.device, tiles, height * width))):
        pictures = [Picture(frame.copy() if tiles else frame) for frame in batch]  # tiles overwrite their input
        results = translate_pictures(model, pictures, tiles, scratch=scratch)
        yield from zip(batch, (to_channels(result.pixels, 3) for result in results))


class Smoother:
    """Blends each translated frame with the previous output frame where the input did not change.

    Colours are averaged over a few pixels, so that noise does not count as a change. Inputs are compared with a
    moving average of earlier ones, blended like the output, to follow slow fades, too.
    Optical flow is not estimated: moving parts are shown as the network translates them.
    """

    def __init__(self, smooth: float):
        if not 0 <= smooth < 1:
            raise ValueError(f"smooth={smooth}: out of range; give a number from 0 to less than 1")
        self._smooth = smooth
        self._previous: tuple[Tensor, Tensor] | None = None

    def __call__(self, frame: np.ndarray, translated: np.ndarray) -> np.ndarray:
        """Return the output for the input `frame` and its translation, all `(H, W, 3)` uint8."""
        if not self._smooth:
            return translated
        source, result = (torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255 for image in (frame, translated))
        if self._previous is not None:
            previous_source, previous_result = self._previous
            weight = self._smooth * _measure_stillness(source - previous_source)
            source = torch.lerp(source, previous_source, weight)
            result = torch.lerp(result, previous_result, weight)
        self._previous = source, result
        return (result[0].permute(1, 2, 0) * 255).round().to(torch.uint8).numpy()


def _measure_stillness(difference: Tensor) -> Tensor:
    """Return `(1, 1, H, W)` from 0 (moving) to 1 (static) for the difference `(1, 3, H, W)` of two inputs in [0, 1]."""
    mean = F.avg_pool2d(difference, _PATCH, stride=1, padding=_PATCH // 2, count_include_pad=False)
    return torch.exp(-((mean.abs().amax(dim=1, keepdim=True) / STILL_THRESHOLD) ** 2))
