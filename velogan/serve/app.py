"""The FastAPI application: the page, and the API of a translation service."""

from __future__ import annotations

import asyncio
import secrets
from importlib.resources import files
from string import Template
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, FastAPI, File, HTTPException, Request, Response
from fastapi.responses import HTMLResponse
from starlette.formparsers import MultiPartParser
from starlette.middleware.trustedhost import TrustedHostMiddleware

from velogan.files import __version__
from velogan.serve import pictures
from velogan.serve.access import Guard
from velogan.serve.schema import Health, ServerInfo, TranslateForm, TranslateResponse
from velogan.serve.service import TranslationService

MultiPartParser.spool_max_size = 2**62  # an upload is never a temporary file: the guard bounds its size in memory

router = APIRouter()


def _get_service(request: Request) -> TranslationService:
    return request.app.state.service


Service = Annotated[TranslationService, Depends(_get_service)]


def build_app(service: TranslationService, *, token: str | None, host: str = "127.0.0.1") -> FastAPI:
    """Return the application of `service`.

    Without a `token` it accepts only requests to a local host name or `host`, against DNS rebinding by other web pages.
    """
    app = FastAPI(
        title="velogan",
        version=__version__,
        docs_url=None,  # FastAPI's own pages load their scripts from another host
        redoc_url=None,
    )
    app.state.service = service
    app.include_router(router)
    app.add_middleware(Guard, service=service, token=token)
    hosts = ["localhost", "127.0.0.1", "::1", "[::1]", host] if token is None else ["*"]
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts)
    return app


@router.get("/healthz", summary="Check that the server runs; needs no token")
async def healthz(service: Service) -> Health:
    """Return the number of unfinished requests."""
    return Health(waiting=service.waiting)


@router.get("/api/about", summary="Directions, formats and limits")
async def about(service: Service) -> ServerInfo:
    """Return the directions, formats and limits of this server."""
    return ServerInfo(
        name=service.name,
        directions={direction: " → ".join(model.domains) for direction, model in service.models.items()},
        uncertainty=list(service.estimators),
        formats=[suffix[1:] for suffix in pictures.MEDIA_TYPES],
        max_upload_bytes=service.limits.upload_bytes,
        max_pixels=service.limits.pixels,
        seconds=service.limits.seconds,
        version=__version__,
    )


@router.post(
    "/api/translate",
    summary="Translate a picture",
    response_model=TranslateResponse,
    responses={200: {"content": {"image/*": {}}, "description": "With answer=picture: the translated file."}},
)
async def translate(
    request: Request, service: Service, form: Annotated[TranslateForm, File()]
) -> Response | TranslateResponse:
    """Translate the uploaded picture; stop if the client disconnects."""
    task = asyncio.create_task(service.translate(form, await form.picture.read()))
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=0.2)
            if await request.is_disconnected():
                raise HTTPException(400, "the connection was closed")
    finally:
        task.cancel()
        await asyncio.wait({task})  # the work is cancelled before the client is answered
    translated = task.result()
    if form.answer == "json":
        return translated
    disposition = f"attachment; filename*=UTF-8''{quote(translated.name, safe='')}"
    headers = {"Content-Disposition": disposition, "X-Content-Type-Options": "nosniff"}
    return Response(translated.picture, media_type=translated.media_type, headers=headers)


@router.get("/", include_in_schema=False)
async def index() -> HTMLResponse:
    """Return the page, which makes no requests except to this API."""
    nonce = secrets.token_urlsafe()
    script = _read_resource("translate", "page.js") + _read_resource("serve", "page.js")
    page = Template(_read_resource("serve", "page.html"))
    text = page.substitute(style=_read_resource("translate", "page.css"), script=script, nonce=nonce)
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return HTMLResponse(text, headers={"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"})


def _read_resource(package: str, name: str) -> str:
    return files(f"velogan.{package}").joinpath(name).read_text(encoding="utf-8")
