"""Access to the server: the token, the host names it answers to, and the headers that restrict a browser."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Collection
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from velogan.serve.limits import Refusal
from velogan.serve.schema import ErrorAnswer, Problem

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_DRAINED = 2**26  # bytes of a refused upload that are thrown away, so that the client reads the answer
_DRAINED_SECONDS = 5


def refused(refusal: Refusal) -> JSONResponse:
    """The HTTP answer to a request that is refused."""
    body = ErrorAnswer(error=Problem(code=refusal.code, message=refusal.message)).model_dump()
    headers = {} if refusal.after is None else {"Retry-After": str(refusal.after)}
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body, refusal.status, headers)


class Guard:
    """A wrapper of the whole application that checks who may call it.

    `token`: every call of `/api` must bring it; without one, only calls by one of the names `hosts` are served, so that
    no web page elsewhere can make a browser call this server (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, *, token: str | None, hosts: Collection[str]):
        self._app, self._token, self._hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        upload = _Upload(scope, receive)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if message["status"] != 408:  # whose sender is too slow to be waited for
                    await upload.drain()
            await send(message)

        refusal = self._refusal(Headers(scope=scope), scope["path"])
        await (refused(refusal) if refusal else self._app)(scope, upload.receive, answer)

    def _refusal(self, headers: Headers, path: str) -> Refusal | None:
        host = headers.get("host", "")
        if self._token is None and _parted(f"//{host}").hostname not in self._hosts:
            known = " or ".join(sorted(self._hosts))
            return Refusal(
                421, "wrong_host", f"this server is called {known}; to call it otherwise, start it with a token"
            )
        origin = headers.get("origin")
        if origin is not None and _parted(origin).netloc != host:
            return Refusal(403, "other_site", "web pages of other sites may not use this server")
        if self._token is not None and path.startswith("/api/"):
            scheme, _, given = headers.get("authorization", "").partition(" ")
            same = hmac.compare_digest(given.strip().encode(), self._token.encode())
            if scheme.lower() != "bearer" or not same:
                return Refusal(401, "no_token", "send the server's token in the header `Authorization: Bearer TOKEN`")
        return None


def _parted(address: str) -> SplitResult:
    """The parts of an address; empty where it is none."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


class _Upload:
    """The body of a request; `drain` throws away what the application did not read of it."""

    def __init__(self, scope: Scope, receive: Receive):
        headers = Headers(scope=scope)
        self._receive = receive
        self._left = "content-length" in headers or "transfer-encoding" in headers

    async def receive(self) -> Message:
        message = await self._receive()
        self._left = message["type"] == "http.request" and message.get("more_body", False)
        return message

    async def drain(self) -> None:
        thrown = 0
        try:
            async with asyncio.timeout(_DRAINED_SECONDS):
                while self._left and thrown < _DRAINED:
                    thrown += len((await self.receive()).get("body", b""))
        except TimeoutError:
            pass
