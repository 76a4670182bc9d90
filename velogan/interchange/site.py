"""Export of a static web site that translates in the visitor's browser, by ONNX Runtime."""

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
from velogan.interchange.export import ExportedFile
from velogan.translate.model import Translator
from velogan.types import Direction

RUNTIME = "onnxruntime-web-1.30.0.tgz"
"""The npm package of ONNX Runtime for browsers, by Microsoft, under the MIT licence."""

ADDRESS = f"https://registry.npmjs.org/onnxruntime-web/-/{RUNTIME}"
INTEGRITY = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
"""The package's SHA-512 in base64, as npm states it."""

PARTS = (
    "ort.wasm.bundle.min.mjs",
    "ort-wasm-simd-threaded.wasm",
    "ort.webgpu.bundle.min.mjs",
    "ort-wasm-simd-threaded.asyncify.wasm",
)
"""Two builds of ONNX Runtime, each a script and its WebAssembly: for browsers without and with WebGPU."""

_PAGE = {
    "index.html": ("interchange/web/index.html",),
    "page.css": ("translate/page.css",),
    "page.js": ("translate/page.js", "interchange/web/page.js"),
    "worker.js": ("interchange/web/worker.js",),
}
_MAX_BYTES = 2**27  # maximum size of the package
_TIMEOUT = 30  # seconds without data


def fetch_runtime(file: Path | None = None) -> bytes:
    """Return the content of the package `RUNTIME` from `file`, else from the cache, else downloaded from npm.

    Raises ValueError if its checksum is not the pinned one, OSError if the download fails.
    """
    cached = code_directory() / RUNTIME
    if file or cached.is_file():
        source = file or cached
        data = source.read_bytes() if source.is_file() else b""
        if _is_pinned(data):
            return data
        if file:
            raise ValueError(f"onnxruntime={file} is not npm's {RUNTIME}: download {ADDRESS} and give that file")
    try:
        with urlopen(Request(ADDRESS, headers={"User-Agent": "velogan"}), timeout=_TIMEOUT) as response:
            data = response.read(_MAX_BYTES)
    except (OSError, HTTPException) as error:
        raise OSError(
            f"{ADDRESS} cannot be downloaded ({getattr(error, 'reason', None) or error}): download it on another "
            "machine and give the file with --onnxruntime"
        ) from error
    if not _is_pinned(data):
        raise ValueError(
            f"the download of {ADDRESS} has a wrong checksum: try again, or give a file with --onnxruntime"
        )
    with atomic_write(cached) as tmp_path:
        tmp_path.write_bytes(data)
    return data


def _is_pinned(data: bytes) -> bool:
    return base64.b64encode(hashlib.sha512(data).digest()).decode() == INTEGRITY


def check_for_browsers(model: Translator) -> None:
    """Raise ValueError if `model` was not trained on grey or RGB images of 8 or 16 bits, which browsers can read."""
    for verb, pixel_format in (("reads", model.input), ("writes", model.output)):
        if pixel_format.channels not in (1, 3):
            raise ValueError(
                f"format=web: browsers show grey or RGB, and this generator {verb} "
                f"{pluralize(pixel_format.channels, 'channel')}: choose format=onnx"
            )
        low, high = pixel_format.range or (0.0, 255.0)
        if (low, high) not in ((0.0, 255.0), (0.0, 65535.0)):
            raise ValueError(
                f"format=web: this generator {verb} values from {low:g} to {high:g}, "
                "which pictures in a browser cannot represent: choose format=onnx"
            )


def write_site(
    out: Path, title: str, models: Mapping[Direction, tuple[Translator, ExportedFile]], runtime: bytes
) -> None:
    """Write the page, the scripts and the settings for the exported generators in `out`.

    `runtime`: the content of the package, from `fetch_runtime`.
    """
    for name, parts in _PAGE.items():
        write_text(out / name, "".join(files("velogan").joinpath(part).read_text(encoding="utf-8") for part in parts))
    with tarfile.open(fileobj=io.BytesIO(runtime)) as archive:
        for part in PARTS:
            member = archive.extractfile(f"package/dist/{part}")
            assert member is not None
            with atomic_write(out / part) as tmp_path:
                tmp_path.write_bytes(member.read())
    directions = {
        direction: {
            "file": exported.file.name,
            "title": " → ".join(model.domains),
            "megabytes": round(exported.megabytes, 1),
            "multiple": model.multiple,
            "in": model.input.channels,
            "out": model.output.channels,
        }
        for direction, (model, exported) in models.items()
    }
    write_text(out / "site.json", json.dumps({"name": title, "directions": directions}, indent=1))
