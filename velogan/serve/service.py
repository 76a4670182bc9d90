"""The translation of uploads, one after another in a thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass

import numpy as np
from fastapi import HTTPException

from velogan.data.pictures.images import Picture, choose_suffix, detect_suffix, encode
from velogan.serve import pictures
from velogan.serve.schema import Preview, Translated, TranslateForm, UncertaintyInfo
from velogan.translate.large import plan_tiles
from velogan.translate.model import Translator
from velogan.translate.pictures import output_format, translate_pictures
from velogan.translate.uncertainty import UncertaintyEstimator
from velogan.types import Direction


class _Abandoned(Exception):
    """Nobody waits for this result any more."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of each request, and of all together. Raises ValueError if one admits nothing.

    upload_bytes: of a request's body
    pixels: of a picture
    seconds: from a request's first byte to its answer, waiting included
    waiting: number of requests at once
    """

    upload_bytes: int = 32 * 2**20
    pixels: int = 16 * 10**6
    seconds: float = 300
    waiting: int = 16

    def __post_init__(self) -> None:
        if not all(limit > 0 for limit in astuple(self)):
            raise ValueError("--max-mb, --max-megapixels, --seconds and --waiting: give numbers above 0")


class TranslationService:
    """Translates pictures by the `models`, which run once first, so that no request waits for kernels to be built.

    name: the run's
    tile: that of `velogan translate`
    estimators: make uncertainty maps, for the directions that have a way back
    """

    def __init__(
        self,
        models: Mapping[Direction, Translator],
        *,
        name: str,
        limits: Limits,
        tile: int | None = None,
        estimators: Mapping[Direction, UncertaintyEstimator] | None = None,
    ):
        self.models, self.name, self.limits, self.estimators = models, name, limits, estimators or {}
        self.waiting = 0
        """The number of uploads that are not answered."""
        self._tile = tile
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="translate")
        for model in models.values():
            dtype = np.dtype(model.input.dtype)
            translate_pictures(model, [Picture(np.zeros((64, 64, model.input.channels), dtype))], None)

    async def translate(self, form: TranslateForm, upload: bytes) -> Translated:
        """Return the translation of a file's bytes, after those that came before. Raises HTTPException.

        Cancelling this call takes the work out of the line, or ends it at the next tile.
        """
        direction = form.direction or next(iter(self.models))
        if direction not in self.models:
            raise HTTPException(400, f"direction={direction}: this run has {', '.join(self.models)} alone")
        if form.uncertainty and direction not in self.estimators:
            raise HTTPException(
                400, f"uncertainty needs a way back, and this run has none for {direction}: leave it out"
            )
        abandoned = threading.Event()

        def check_waited_for() -> None:
            if abandoned.is_set():
                raise _Abandoned

        work = self._thread.submit(self._translate, form, direction, upload, check_waited_for)
        try:
            return await asyncio.wrap_future(work)
        finally:
            abandoned.set()

    def _translate(
        self, form: TranslateForm, direction: Direction, upload: bytes, check_waited_for: Callable[[], None]
    ) -> Translated:
        started, model = time.monotonic(), self.models[direction]
        source = pictures.read(upload, self.limits.pixels, pages_are_channels=model.pages_are_channels)
        try:
            tiles = plan_tiles(model, *source.pixels.shape[:2], tile=self._tile)
            (result,) = translate_pictures(model, [source.read_only()], tiles, before_tile=check_waited_for)
            suffix = choose_suffix(detect_suffix(upload[:12]), result)
            data = encode(suffix, result)
        except ValueError as error:
            raise HTTPException(422, f"this picture cannot be translated: {error}") from None
        uncertainty = no_uncertainty = None
        if form.uncertainty:
            check_waited_for()
            try:
                uncertainty = self.estimators[direction].estimate(source, tile=self._tile)
            except ValueError as error:
                no_uncertainty = str(error)
        preview = None
        if form.preview:
            preview = Preview(
                before=pictures.shown(source, model.input),
                after=pictures.shown(result, output_format(model, source)),
                uncertainty=pictures.overlay(uncertainty.map) if uncertainty else None,
            )
        return Translated(
            name=pictures.name_of(form.picture.filename or "", suffix),
            direction=direction,
            width=result.pixels.shape[1],
            height=result.pixels.shape[0],
            format=suffix[1:],
            media_type=pictures.MEDIA_TYPES[suffix],
            kept_format=suffix == detect_suffix(upload[:12]) and (suffix != ".png" or upload.startswith(b"\x89PNG")),
            seconds=round(time.monotonic() - started, 3),
            picture=data,
            preview=preview,
            uncertainty=UncertaintyInfo(map=encode(".png", Picture(uncertainty.map[..., None])), **uncertainty.summary)
            if uncertainty
            else None,
            no_uncertainty=no_uncertainty,
        )
