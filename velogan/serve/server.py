"""`velogan serve`: a socket, a token where others can reach it, and uvicorn until Ctrl-C."""

from __future__ import annotations

import ipaddress
import secrets
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_CONNECTIONS = 512
"""The most connections at once; further ones get a 503 without a body of ours."""


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to `host` and `port`; 0 takes a free one. `ValueError` with the mend where that cannot be had."""
    if not 0 <= port <= 65535:
        raise ValueError(f"--port {port}: give a number from 0 to 65535; 0 takes a free one")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise ValueError(f"--host {host}: there is no such address; 127.0.0.1 is for this machine alone") from None
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(128)
    except OSError as error:
        made.close()
        raise ValueError(f"--port {port} of {host}: {(error.strerror or str(error)).lower()}; name another") from None
    return made


def token_for(host: str, given: str | None) -> str | None:
    """The token that calls must bring: `given`; else a new one where other machines can reach `host`; else none."""
    if given is not None:
        if len(given) < 16 or not given.isascii() or not given.isprintable() or " " in given:
            raise ValueError("--token: give at least 16 letters and digits, without spaces, or leave it out")
        return given
    return None if _is_loopback(host) else secrets.token_urlsafe(24)


def serve(server: uvicorn.Server, listening: socket.socket, *, say: Callable[[str], None]) -> dict[str, Any]:
    """Serves until it is interrupted; gives `host`, `port` and the number of `requests`.

    At Ctrl-C or SIGTERM it admits no request any more, refuses those that wait, and finishes the translation that has
    begun.
    """
    host, port = listening.getsockname()[:2]
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # which uvicorn calls again at its end
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        say("stopped")
    finally:
        signal.signal(signal.SIGTERM, before)
    return {"host": host, "port": port, "requests": server.server_state.total_requests}


def make_server(
    app: FastAPI,
    *,
    seconds: float,
    token: str | None = None,
    host: str = "127.0.0.1",
    started: Callable[[], None] = lambda: None,
) -> uvicorn.Server:
    """The server of `app`, called by the name `host`; it calls `started` once it accepts requests.

    At its end it waits up to `seconds` for the translation that has begun.
    """
    import uvicorn

    from velogan.serve.access import Guard

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.state.queue.close()
            await super().shutdown(sockets)

    config = uvicorn.Config(
        Guard(app, token=token, hosts=_LOOPBACK | {host}),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=max(1, round(seconds)),
    )
    return Server(config)


def address(listening: socket.socket, token: str | None) -> str:
    """The address of the page, with the token behind `#`, which no browser sends to a server."""
    host, port = listening.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = socket.gethostname()
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + (f"#token={token}" if token else "")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
