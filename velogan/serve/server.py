"""Run the application: open the socket, choose a token, and run uvicorn until Ctrl-C."""

from __future__ import annotations

import ipaddress
import secrets
import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi import FastAPI


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens at `host` and `port` (0: a free one). Raises ValueError if that fails."""
    if not 0 <= port <= 65535:
        raise ValueError(f"--port {port}: not a port; set a number from 0 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"--host {host} --port {port}: {error}; set another address or port") from None


def choose_token(host: str, token: str | None) -> str | None:
    """Return `token`, or a new one if it is None and other machines can reach `host`. Raises ValueError if too weak."""
    if token is not None:
        if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
            raise ValueError("--token: too short or not printable ASCII; set at least 16 letters and digits, no spaces")
        return token
    return None if host in ("localhost", "127.0.0.1", "::1") else secrets.token_urlsafe(24)


def serve(app: FastAPI, listener: socket.socket, *, seconds: float) -> dict[str, Any]:
    """Serve until Ctrl-C or SIGTERM, then finish pending requests for up to `seconds`.

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
        limit_concurrency=512,  # maximum number of connections; others get 503
        timeout_graceful_shutdown=max(1, round(seconds)),
    )
    server = uvicorn.Server(config)
    host, port = listener.getsockname()[:2]
    previous_handler = signal.signal(signal.SIGTERM, signal.default_int_handler)  # uvicorn calls it again at its end
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
    signal.signal(signal.SIGTERM, previous_handler)
    return {"host": host, "port": port, "requests": server.server_state.total_requests}


def page_url(listener: socket.socket, token: str | None) -> str:
    """Return the URL of the page, with the token after `#`, which browsers do not send to servers."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = socket.gethostname()
    authority = f"[{host}]" if ":" in host else host
    return f"http://{authority}:{port}/" + (f"#token={token}" if token else "")
