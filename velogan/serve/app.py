"""The application: the page and the API, over a queue of pictures."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
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
from velogan.serve.queue import Order, Queue, Served
from velogan.serve.schema import ErrorAnswer, Health, Preview, ServerInfo, Translated, TranslateForm
from velogan.serve.upload import read_upload
from velogan.translate.doubt import Doubter
from velogan.translate.files import pixels_of_a_pass
from velogan.translate.large import Before
from velogan.translate.memory import translate_pictures
from velogan.translate.model import Translator
from velogan.translate.pictures import output_format
from velogan.types import Direction

_SUMMARY = "Translate a picture"
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
    400: {"model": ErrorAnswer, "description": "The form, a field or the file's name is not as it should be."},
    401: {"model": ErrorAnswer, "description": "The token is missing or wrong."},
    408: {"model": ErrorAnswer, "description": "The upload took too long."},
    413: {"model": ErrorAnswer, "description": "Too many bytes or pixels."},
    415: {"model": ErrorAnswer, "description": "The body is no form."},
    422: {"model": ErrorAnswer, "description": "The file is no picture that can be read or translated."},
    503: {
        "model": ErrorAnswer,
        "description": "Too many wait already; the header Retry-After says when to come again.",
    },
    504: {"model": ErrorAnswer, "description": "The translation took too long."},
}


def build_app(
    models: Mapping[Direction, Translator],
    *,
    name: str,
    titles: Mapping[Direction, str],
    limits: Limits,
    tile: int | None = None,
    doubters: Mapping[Direction, Doubter] | None = None,
) -> FastAPI:
    """The application over `models`; `titles` are for people; `tile` as `velogan translate` has it.

    `doubters` make maps of doubt for the directions that have a way back.

    Its `state.queue` is the queue of waiting pictures.
    """
    device = next(iter(models.values())).device
    doubters = doubters or {}

    def translate(job: Order, batch: Sequence[Picture], go_on: Before) -> list[Served]:
        made = translate_pictures(models[job.direction], batch, tile=tile, before_tile=go_on)
        if not job.doubt:
            return [Served(one) for one in made]
        found = []
        for picture, one in zip(batch, made):
            go_on()
            try:
                found.append(Served(one, doubters[job.direction].of(picture, tile=tile)))
            except ValueError as error:
                found.append(Served(one, no_doubt=str(error)))
        return found

    queue = Queue(translate, most=limits.waiting, batch_pixels=pixels_of_a_pass(device))
    pool = ThreadPoolExecutor(2, thread_name_prefix="pictures")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        work = asyncio.create_task(queue.work())
        yield
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
        pool.shutdown(cancel_futures=True)

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
            directions={way: titles[way] for way in models},
            doubt=list(doubters),
            formats=[suffix[1:] for suffix in pictures.MEDIA_TYPES],
            max_upload_bytes=limits.upload_bytes,
            max_pixels=limits.pixels,
            seconds=limits.seconds,
            version=__version__,
        )

    @app.post("/api/translate", summary=_SUMMARY, responses=_ANSWERS, response_model=Translated, openapi_extra=_FORM)  # pyright: ignore[reportArgumentType]
    async def translate_upload(request: Request) -> Response | Translated:
        with queue.admitted():
            try:
                async with asyncio.timeout(limits.seconds):
                    asked, named, data = await read_upload(request, limits)
            except TimeoutError:
                raise Refusal(408, "slow_upload", f"the upload took more than {limits.seconds:g} s") from None
            return await _while_connected(request, answered(asked, named, data))

    async def answered(asked: TranslateForm, named: str, data: bytes) -> Response | Translated:
        began = time.monotonic()
        direction = asked.direction or next(iter(models))
        if direction not in models:
            raise Refusal(400, "no_direction", f"direction={direction}: this run has {', '.join(models)} alone")
        model = models[direction]
        if asked.doubt and direction not in doubters:
            raise Refusal(
                400, "no_doubt", f"doubt needs a way back, and this run has none for {direction}: leave it out"
            )
        try:
            source, made = await queue.translated(
                Order(direction, asked.doubt), lambda: pictures.read(data, limits), pool, seconds=limits.seconds
            )
        except ValueError as error:
            raise Refusal(422, "not_translated", f"this picture cannot be translated: {error}") from None
        result = made.picture

        def finish() -> Response | Translated:
            file = pictures.written(named, data, result)
            kind = pictures.MEDIA_TYPES[file.suffix]
            if asked.answer == "picture":
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
                    doubt=pictures.overlay(made.doubt.map) if made.doubt else None,
                )
                if asked.preview
                else None,
                doubt=pictures.doubt(made.doubt) if made.doubt else None,
                no_doubt=made.no_doubt,
            )

        return await asyncio.get_running_loop().run_in_executor(pool, finish)

    @app.get("/", include_in_schema=False)
    async def index() -> HTMLResponse:
        return HTMLResponse(page(), headers={"Content-Security-Policy": policy(page())})

    return app


def warm_up(models: Mapping[Direction, Translator]) -> None:
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
