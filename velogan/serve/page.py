"""The page: one file of HTML, which asks for nothing but this server's API."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files
from string import Template


@cache
def page() -> str:
    """The page as HTML with its own style and script."""
    script = _file("translate", "page.js") + _file("serve", "page.js")
    return Template(_file("serve", "page.html")).substitute(style=_file("translate", "page.css"), script=script)


@cache
def policy(text: str) -> str:
    """The Content-Security-Policy that allows only the page's own style and script, by their hashes."""
    hashes = {
        tag: " ".join(f"'sha256-{_hash(body)}'" for body in re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL))
        for tag in ("style", "script")
    }
    return (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; "
        "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _file(room: str, name: str) -> str:
    return files(f"velogan.{room}").joinpath(name).read_text(encoding="utf-8")
