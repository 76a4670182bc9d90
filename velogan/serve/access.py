"""Checks of a request before its body is read."""

from __future__ import annotations

import asyncio
import hmac

from fastapi import HTTPException, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from velogan.serve.service import TranslationService


class Guard:
    """ASGI middleware that checks origin, token (for `/api`, if not None), size, number and duration of requests."""

    def __init__(self, app: ASGIApp, *, service: TranslationService, token: str | None):
        self._app, self._service = app, service
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request, service = Request(scope), self._service
        try:
            self._check(request)
            if request.method != "POST":
                return await self._app(scope, receive, send)
            service.waiting += 1
            try:
                async with asyncio.timeout(service.limits.seconds):
                    await self._app(scope, receive, send)
            finally:
                service.waiting -= 1
        except HTTPException as error:
            await JSONResponse({"detail": error.detail}, error.status_code, error.headers)(scope, receive, send)
        except TimeoutError:
            detail = f"upload, waiting and translation took more than {service.limits.seconds:g} s"
            await JSONResponse({"detail": detail}, 504)(scope, receive, send)

    def _check(self, request: Request) -> None:
        """Raise HTTPException if origin, token or size of the request is not allowed, or the queue is full."""
        limits = self._service.limits
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
            raise HTTPException(403, "web pages of other sites may not use this server")
        if self._token is not None and request.url.path.startswith("/api/"):
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), self._token.encode()):
                detail = "the token is missing or wrong: send the header `Authorization: Bearer TOKEN`"
                raise HTTPException(401, detail, {"WWW-Authenticate": "Bearer"})
        if request.method == "POST":
            length = request.headers.get("content-length", "")
            if not length.isdigit() or "transfer-encoding" in request.headers:
                raise HTTPException(411, "the header `Content-Length` is missing: send the length of the body")
            if int(length) > limits.upload_bytes:
                raise HTTPException(413, f"more than {limits.upload_bytes / 2**20:g} MB: send a smaller file")
            if self._service.waiting >= limits.waiting:
                detail = f"the queue is full, with {limits.waiting} requests: try again soon"
                raise HTTPException(503, detail, {"Retry-After": "5"})
