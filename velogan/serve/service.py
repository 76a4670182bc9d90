"""Translate uploads, one after another in a thread."""

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
from velogan.serve.schema import Preview, TranslateForm, TranslateResponse, UncertaintyInfo
from velogan.translate.large import plan_tiles
from velogan.translate.model import Translator
from velogan.translate.pictures import output_format, translate_pictures
from velogan.translate.uncertainty import UncertaintyEstimator
from velogan.types import Direction


class _Cancelled(Exception):
    """Stops a translation whose request has ended."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of requests. Raises ValueError if one is not above 0.

    upload_bytes: size of a request's body
    pixels: number of pixels of a picture
    seconds: duration of a request, including upload and waiting
    waiting: number of requests running or queued
    """

    upload_bytes: int = 32 * 2**20
    pixels: int = 16 * 10**6
    seconds: float = 300
    waiting: int = 16

    def __post_init__(self) -> None:
        if not all(limit > 0 for limit in astuple(self)):
            raise ValueError("--max-mb, --max-megapixels, --seconds and --waiting: set numbers above 0")


class TranslationService:
    """Translates pictures with `models`. Each model runs once on creation, so that no request waits for compilation.

    name: name of the run
    tile: tile size in pixels, see `velogan translate --tile`
    estimators: uncertainty estimators, for the directions that allow uncertainty maps
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
        self.models, self.name = models, name
        self.limits, self.estimators = limits, estimators or {}
        self.waiting = 0
        """Number of requests running or queued."""
        self._tile, self._thread = tile, ThreadPoolExecutor(1, thread_name_prefix="translate")
        for model in models.values():
            dtype = np.dtype(model.input.dtype)
            translate_pictures(model, [Picture(np.zeros((64, 64, model.input.channels), dtype))], None)

    async def translate(self, form: TranslateForm, upload: bytes) -> TranslateResponse:
        """Translate the file `upload` when its turn in the queue comes. Raises HTTPException if that fails.

        If the caller is cancelled, the work leaves the queue, or stops before its next tile.
        """
        direction = form.direction or next(iter(self.models))
        if direction not in self.models:
            raise HTTPException(400, f"direction={direction}: not in this run; send {' or '.join(self.models)}")
        if form.uncertainty and direction not in self.estimators:
            raise HTTPException(400, f"uncertainty=true: this run has no reverse generator for {direction}; omit it")
        cancelled = threading.Event()

        def raise_if_cancelled() -> None:
            if cancelled.is_set():
                raise _Cancelled

        work = self._thread.submit(self._translate, form, direction, upload, raise_if_cancelled)
        try:
            return await asyncio.wrap_future(work)
        finally:
            cancelled.set()

    def _translate(
        self, form: TranslateForm, direction: Direction, upload: bytes, raise_if_cancelled: Callable[[], None]
    ) -> TranslateResponse:
        started, model = time.monotonic(), self.models[direction]
        source = pictures.decode_upload(upload, self.limits.pixels, pages_are_channels=model.pages_are_channels)
        try:
            tiles = plan_tiles(model, *source.pixels.shape[:2], tile=self._tile)
            (result,) = translate_pictures(model, [source.as_read_only()], tiles, before_tile=raise_if_cancelled)
            suffix = choose_suffix(detect_suffix(upload[:12]), result)
            data = encode(suffix, result)
        except ValueError as error:
            raise HTTPException(422, f"this picture cannot be translated: {error}") from None
        uncertainty = uncertainty_error = None
        if form.uncertainty:
            raise_if_cancelled()
            try:
                uncertainty = self.estimators[direction].estimate(source, tile=self._tile)
            except ValueError as error:
                uncertainty_error = str(error)
        preview = None
        if form.preview:
            preview = Preview(
                before=pictures.preview_data_url(source, model.input),
                after=pictures.preview_data_url(result, output_format(model, source)),
                uncertainty=pictures.overlay_data_url(uncertainty.map) if uncertainty else None,
            )
        return TranslateResponse(
            name=pictures.result_name(form.picture.filename or "", suffix),
            direction=direction,
            width=result.pixels.shape[1],
            height=result.pixels.shape[0],
            format=suffix[1:],
            media_type=pictures.MEDIA_TYPES[suffix],
            same_format=suffix == detect_suffix(upload[:12]) and (suffix != ".png" or upload.startswith(b"\x89PNG")),
            seconds=round(time.monotonic() - started, 3),
            picture=data,
            preview=preview,
            uncertainty=UncertaintyInfo(map=encode(".png", Picture(uncertainty.map[..., None])), **uncertainty.summary)
            if uncertainty
            else None,
            uncertainty_error=uncertainty_error,
        )
