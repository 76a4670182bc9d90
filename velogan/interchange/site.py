"""A folder for any web host, whose page translates on the visitor's machine, by ONNX Runtime in the browser."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from http.client import HTTPException
from importlib.resources import files
from pathlib import Path
from urllib.request import Request, urlopen

from velogan.data.sets.sources import code_directory
from velogan.files import atomic_write, pluralize, write_text
from velogan.interchange.export import Exported
from velogan.translate.model import Translator
from velogan.types import Direction

RUNTIME = "onnxruntime-web-1.30.0.tgz"
"""The package of npm, by Microsoft, under the MIT licence."""

ADDRESS = f"https://registry.npmjs.org/onnxruntime-web/-/{RUNTIME}"
INTEGRITY = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
"""The package's SHA-512 in base64, as npm states it."""

PARTS = (
    "ort.wasm.bundle.min.mjs",
    "ort-wasm-simd-threaded.wasm",
    "ort.webgpu.bundle.min.mjs",
    "ort-wasm-simd-threaded.asyncify.wasm",
)
"""Two builds of ONNX Runtime: for browsers without and with WebGPU, each a script and its program."""

_PAGE = {
    "index.html": ("interchange/web/index.html",),
    "page.css": ("translate/page.css",),
    "page.js": ("translate/page.js", "interchange/web/page.js"),
    "worker.js": ("interchange/web/worker.js",),
}
_MOST = 2**27  # bytes of the package
_TIMEOUT = 30  # seconds without a byte


def fetch_runtime(given: Path | None = None) -> bytes:
    """The package `RUNTIME`: the file `given`, else that of the cache, else fetched from npm and kept in the cache.

    ValueError where it is not the pinned one, OSError where it cannot be fetched.
    """
    kept = code_directory() / RUNTIME
    if given or kept.is_file():
        file = given or kept
        data = file.read_bytes() if file.is_file() else b""
        if _is_pinned(data):
            return data
        if given:
            raise ValueError(f"onnxruntime={given} is not {RUNTIME} as npm has it: fetch {ADDRESS} and name that file")
    try:
        with urlopen(Request(ADDRESS, headers={"User-Agent": "velogan"}), timeout=_TIMEOUT) as answer:
            data = answer.read(_MOST)
    except (OSError, HTTPException) as error:
        raise OSError(
            f"{ADDRESS} cannot be downloaded ({getattr(error, 'reason', None) or error}): fetch it on another machine, "
            "and name the file with --onnxruntime"
        ) from error
    if not _is_pinned(data):
        raise ValueError(f"what {ADDRESS} gave is not the pinned package: try again, or name it with --onnxruntime")
    with atomic_write(kept) as tmp_path:
        tmp_path.write_bytes(data)
    return data


def _is_pinned(data: bytes) -> bool:
    return base64.b64encode(hashlib.sha512(data).digest()).decode() == INTEGRITY


def check_for_browsers(model: Translator) -> None:
    """ValueError where pictures of 8 bits, grey or RGB, are not what `model` was trained on."""
    for side, form in (("reads", model.input), ("writes", model.output)):
        if form.channels not in (1, 3):
            raise ValueError(
                f"format=web: browsers show grey or RGB, and this generator {side} "
                f"{pluralize(form.channels, 'channel')}: choose format=onnx"
            )
        low, high = form.range or (0.0, 255.0)
        if (low, high) not in ((0.0, 255.0), (0.0, 65535.0)):
            raise ValueError(
                f"format=web: this generator {side} values from {low:g} to {high:g}, "
                "which a browser's pictures do not hold: choose format=onnx"
            )


def write_site(out: Path, title: str, made: Mapping[Direction, tuple[Translator, Exported]], runtime: bytes) -> None:
    """Writes what the generators in `out` need to be a site. `runtime` is from `fetch_runtime`."""
    for name, parts in _PAGE.items():
        write_text(out / name, "".join(files("velogan").joinpath(part).read_text(encoding="utf-8") for part in parts))
    with tarfile.open(fileobj=io.BytesIO(runtime)) as archive:
        for part in PARTS:
            member = archive.extractfile(f"package/dist/{part}")
            assert member is not None
            with atomic_write(out / part) as tmp_path:
                tmp_path.write_bytes(member.read())
    facts = {
        way: {
            "file": one.file.name,
            "title": " → ".join(model.domains),
            "megabytes": round(one.megabytes, 1),
            "multiple": model.multiple,
            "in": model.input.channels,
            "out": model.output.channels,
        }
        for way, (model, one) in made.items()
    }
    write_text(out / "site.json", json.dumps({"name": title, "directions": facts}, indent=1))
