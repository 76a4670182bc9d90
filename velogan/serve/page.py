"""The page and the documentation: each one file of HTML, which asks for nothing but this server's API."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any


@cache
def page() -> str:
    """The page, which asks the API for all that it shows."""
    return Template(_own("page.html")).substitute(style=_own("page.css"), script=_own("page.js"))


def docs(schema: dict[str, Any]) -> str:
    """The API's documentation, made of its OpenAPI schema."""
    operations = [
        _operation(path, method, operation)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]
    models = [_model(name, model) for name, model in schema.get("components", {}).get("schemas", {}).items()]
    return Template(_own("docs.html")).substitute(
        style=_own("page.css"),
        operations="\n".join(operations),
        models="\n".join(models),
        version=schema["info"]["version"],
    )


@cache
def policy(text: str) -> str:
    """The Content-Security-Policy under which a page runs its own style and script, by their hashes, and no other."""
    hashes = {
        tag: " ".join(f"'sha256-{_hash(body)}'" for body in re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL))
        for tag in ("style", "script")
    }
    return (
        f"default-src 'none'; script-src {hashes['script'] or repr('none')}; style-src {hashes['style']}; "
        "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _own(name: str) -> str:
    return files("velogan.serve").joinpath(name).read_text(encoding="utf-8")


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    parts = [
        f"<section><h2><code>{method.upper()} {_text(path)}</code></h2>",
        f"<p>{_text(operation.get('summary', ''))}.</p>",
    ]
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        parts += [f"<h3>Takes <code>{_text(kind)}</code></h3>", _fields(content["schema"])]
    parts.append("<h3>Answers</h3><table><tr><th>status</th><th>means</th><th>body</th></tr>")
    for status, answer in operation["responses"].items():
        body = answer.get("content", {}).get("application/json", {}).get("schema", {})
        parts.append(f"<tr><td>{_text(status)}</td><td>{_text(answer['description'])}</td><td>{_kind(body)}</td></tr>")
    return "\n".join([*parts, "</table></section>"])


def _model(name: str, model: dict[str, Any]) -> str:
    title = f'<section id="{_text(name)}"><h2><code>{_text(name)}</code></h2>'
    return f"{title}<p>{_text(model.get('description', ''))}</p>{_fields(model)}</section>"


def _fields(model: dict[str, Any]) -> str:
    rows = []
    for name, field in model.get("properties", {}).items():
        note = field.get("description", "")
        if name in model.get("required", ()):
            note = f"{note} Always there.".strip() if "title" in model else f"{note} Required.".strip()
        elif field.get("default") is not None:
            note = f"{note} Default: {json.dumps(field['default'])}.".strip()
        rows.append(f"<tr><td><code>{_text(name)}</code></td><td>{_kind(field)}</td><td>{_text(note)}</td></tr>")
    return f"<table><tr><th>field</th><th>type</th><th></th></tr>{''.join(rows)}</table>"


def _kind(field: dict[str, Any]) -> str:
    """The type of a field, in words; models link to their own part of the page."""
    if "$ref" in field:
        name = _text(field["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in field:
        return " or ".join(map(_kind, field["anyOf"]))
    if "enum" in field or "const" in field:
        return " or ".join(f"<code>{_text(json.dumps(one))}</code>" for one in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    if field.get("format") == "binary":
        return "file"
    return _text(field.get("type", ""))


def _text(value: Any) -> str:
    return html.escape(str(value))
