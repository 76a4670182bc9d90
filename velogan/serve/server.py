"""`velogan serve`: a socket, a token if others can reach it, and uvicorn until Ctrl-C."""

from __future__ import annotations

import ipaddress
import secrets
import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi import FastAPI


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens at `host` and `port`; 0 takes a free one. Raises ValueError if it cannot."""
    if not 0 <= port <= 65535:
        raise ValueError(f"--port {port}: give a number from 0 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"--host {host} --port {port}: {error}: name another address or port") from None


def token_for(host: str, given: str | None) -> str | None:
    """Return the token that calls must bring: `given`, or a new one if other machines can reach `host`, or none."""
    if given is not None:
        if len(given) < 16 or not given.isascii() or not given.isprintable() or " " in given:
            raise ValueError("--token: give at least 16 letters and digits, without spaces, or leave it out")
        return given
    return None if host in ("localhost", "127.0.0.1", "::1") else secrets.token_urlsafe(24)


def serve(app: FastAPI, listening: socket.socket, *, seconds: float) -> dict[str, Any]:
    """Serve until Ctrl-C or SIGTERM, then answer what has begun for up to `seconds`.

    Returns `host`, `port` and the number of `requests`.
    """
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        limit_concurrency=512,  # connections: more get 503
        timeout_graceful_shutdown=max(1, round(seconds)),
    )
    server = uvicorn.Server(config)
    host, port = listening.getsockname()[:2]
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # which uvicorn calls again at its end
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listening])
    signal.signal(signal.SIGTERM, before)
    return {"host": host, "port": port, "requests": server.server_state.total_requests}


def address(listening: socket.socket, token: str | None) -> str:
    """Return the address of the page, with the token behind `#`, which no browser sends to a server."""
    host, port = listening.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = socket.gethostname()
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + (f"#token={token}" if token else "")
