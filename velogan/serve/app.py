"""The application: the page and the API, over a queue of pictures."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from urllib.parse import quote

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException

from velogan import __version__
from velogan.data.pictures.images import Picture
from velogan.serve import pictures
from velogan.serve.access import refused
from velogan.serve.limits import Limits, Refusal
from velogan.serve.page import page, policy
from velogan.serve.queue import Queue
from velogan.serve.schema import ErrorAnswer, Health, Preview, ServerInfo, Translated, TranslateForm
from velogan.serve.upload import read_upload
from velogan.translate.doubt import Doubter
from velogan.translate.memory import translate_pictures
from velogan.translate.model import Translator
from velogan.translate.pictures import output_format
from velogan.types import Direction

_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["picture"],
                    "properties": {
                        "picture": {"type": "string", "format": "binary", "description": "The picture's file."},
                        **TranslateForm.model_json_schema()["properties"],
                    },
                }
            }
        },
    }
}
_ANSWERS = {
    200: {"content": {"image/*": {}}, "description": "With answer=picture the bytes of the file, else:"},
    **{status: {"model": ErrorAnswer} for status in (400, 401, 408, 413, 415, 422, 503, 504)},
}


def build_app(
    models: Mapping[Direction, Translator],
    *,
    name: str,
    limits: Limits,
    tile: int | None = None,
    doubters: Mapping[Direction, Doubter] | None = None,
) -> FastAPI:
    """The application over `models`, which run once first; `tile` is that of `velogan translate`.

    `doubters` make maps of doubt for the directions that have a way back. Its `state.queue` is the queue of requests.
    """
    doubters = doubters or {}
    _warm_up(models)
    queue = Queue(most=limits.waiting)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        queue.close(wait=True)

    app = FastAPI(
        title="velogan",
        version=__version__,
        description="Pictures in, translated pictures out.",
        docs_url=None,  # FastAPI's own pages load their scripts from another host
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.queue = queue
    _tell_refusals(app)

    @app.get("/healthz", summary="Whether the server works; needs no token", response_description="It works.")
    async def healthz() -> Health:
        return Health(waiting=queue.inside)

    @app.get("/api/about", summary="What this server translates, and what it takes", response_description="All of it.")
    async def about() -> ServerInfo:
        return ServerInfo(
            name=name,
            directions={way: " → ".join(model.domains) for way, model in models.items()},
            doubt=list(doubters),
            formats=[suffix[1:] for suffix in pictures.MEDIA_TYPES],
            max_upload_bytes=limits.upload_bytes,
            max_pixels=limits.pixels,
            seconds=limits.seconds,
            version=__version__,
        )

    def answer(
        form: TranslateForm, direction: Direction, named: str, data: bytes, go_on: Callable[[], None]
    ) -> Response | Translated:
        """Decodes, translates and encodes one picture; `go_on` raises where nobody waits for it any more."""
        began, model = time.monotonic(), models[direction]
        source = pictures.read(data, limits, pages_are_channels=model.pages_are_channels)
        try:
            (result,) = translate_pictures(model, [source], tile=tile, before_tile=go_on)
        except ValueError as error:
            raise Refusal(422, "not_translated", f"this picture cannot be translated: {error}") from None
        doubt = no_doubt = None
        if form.doubt:
            go_on()
            try:
                doubt = doubters[direction].of(source, tile=tile)
            except ValueError as error:
                no_doubt = str(error)
        try:
            file = pictures.written(named, data, result)
        except ValueError as error:
            raise Refusal(422, "not_translated", f"the translation cannot be written: {error}") from None
        kind = pictures.MEDIA_TYPES[file.suffix]
        if form.answer == "picture":
            disposition = f"attachment; filename*=UTF-8''{quote(file.name, safe='')}"
            return Response(file.data, media_type=kind, headers={"Content-Disposition": disposition})
        return Translated(
            name=file.name,
            direction=direction,
            width=result.pixels.shape[1],
            height=result.pixels.shape[0],
            format=file.suffix[1:],
            media_type=kind,
            kept_format=file.kept,
            seconds=round(time.monotonic() - began, 3),
            picture=base64.b64encode(file.data).decode(),
            preview=Preview(
                before=pictures.shown(source, model.input),
                after=pictures.shown(result, output_format(model, source)),
                doubt=pictures.overlay(doubt.map) if doubt else None,
            )
            if form.preview
            else None,
            doubt=pictures.doubt(doubt) if doubt else None,
            no_doubt=no_doubt,
        )

    @app.post(
        "/api/translate",
        summary="Translate a picture",
        responses=_ANSWERS,  # pyright: ignore[reportArgumentType]
        response_model=Translated,
        openapi_extra=_FORM,
    )
    async def translate_upload(request: Request) -> Response | Translated:
        with queue.admitted():
            try:
                async with asyncio.timeout(limits.seconds):
                    form, named, data = await read_upload(request, limits)
            except TimeoutError:
                raise Refusal(408, "slow_upload", f"the upload took more than {limits.seconds:g} s") from None
            way = form.direction or next(iter(models))
            if way not in models:
                raise Refusal(400, "no_direction", f"direction={way}: this run has {', '.join(models)} alone")
            if form.doubt and way not in doubters:
                raise Refusal(400, "no_doubt", f"doubt needs a way back, and this run has none for {way}: leave it out")
            work = queue.run(lambda go_on: answer(form, way, named, data, go_on), seconds=limits.seconds)
            return await _while_connected(request, work)

    @app.get("/", include_in_schema=False)
    async def index() -> HTMLResponse:
        return HTMLResponse(page(), headers={"Content-Security-Policy": policy(page())})

    return app


def _warm_up(models: Mapping[Direction, Translator]) -> None:
    """Translates a small picture each way, so that no request waits for kernels to be built and measured."""
    for model in models.values():
        dtype = np.dtype(model.input.dtype)
        translate_pictures(model, [Picture(np.zeros((64, 64, model.input.channels), dtype))])


async def _while_connected(request: Request, work) -> Response | Translated:
    """What `work` gives; it is cancelled when the client goes away."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Refusal(400, "gone", "the connection was closed")
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


def _tell_refusals(app: FastAPI) -> None:
    @app.exception_handler(Refusal)
    async def told(request: Request, refusal: Refusal) -> Response:
        return refused(refusal)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        code = {404: "no_such_page", 405: "wrong_method"}.get(error.status_code, "refused")
        answer = refused(Refusal(error.status_code, code, f"{request.method} {request.url.path}: {error.detail}"[:300]))
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return refused(Refusal(500, "failed", "the server failed at this request: its own output says why"))
