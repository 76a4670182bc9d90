"""Encode sample grids as WebP data URIs, within a limit on the size of the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from velogan.report.run_data import RunData, as_list, as_mapping

MAX_FRAMES = 24
MAX_PAIRS = 6
MAX_BYTES = 3_300_000  # base64 adds a third
Item = TypeVar("Item")
GAP = 2  # pixels between the images of a grid
QUALITY = 82


def build_galleries(runs: list[RunData]) -> list[dict[str, Any]]:
    """Return the sample grids over training time, one entry per run and direction.

    An entry is a dict with the keys

    run: index of the run
    direction: a2b, b2a or b2b
    columns, rows: names of the columns and rows of the grid
    size, gap: width and height of the grids, and pixels between their images
    frames: `[{"images": int, "uri": str}]`, at most `MAX_FRAMES`, evenly spaced in training time

    The frames of all entries together have at most `MAX_BYTES` bytes before base64 encoding.
    """
    max_frames = MAX_FRAMES if len(runs) == 1 else max(4, 2 * MAX_FRAMES // len(runs))
    selected = [
        (number, run, direction, pick_evenly(sorted(files), max_frames))
        for number, run in enumerate(runs)
        for direction, files in run.grids.items()
    ]
    encoded = _encode([run.grids[direction][step] for _, run, direction, steps in selected for step in steps])
    entries = []
    for number, run, direction, steps in selected:
        frames = [
            {"images": step, "uri": uri}
            for step in steps
            if (uri := encoded.get(run.grids[direction][step])) is not None
        ]
        if frames:
            with Image.open(run.grids[direction][frames[-1]["images"]]) as grid:
                size = grid.size
            entry = {"run": number, "direction": direction, "size": size, "gap": GAP, "frames": frames}
            entries.append(entry | _read_layout(run, direction))
    return entries


def latest_pairs(run: RunData) -> list[tuple[str, str]]:
    """Return up to `MAX_PAIRS` newest `(input, translation)` pairs from A to B as data URIs; may be empty."""
    layout = _read_layout(run, "a2b")
    files = run.grids.get("a2b", {})
    if layout["columns"][:2] != ["input", "translated"] or not files:
        return []
    sheet = _open_image(files[max(files)])
    if sheet is None:
        return []
    columns, rows = len(layout["columns"]), len(layout["rows"])
    width, height = (sheet.width + GAP) / columns, (sheet.height + GAP) / rows
    if min(width, height) < GAP + 1:
        return []

    def tile(row: int, column: int) -> str:
        left, top = round(column * width), round(row * height)
        return to_data_uri(sheet.crop((left, top, round(left + width - GAP), round(top + height - GAP))))

    return [(tile(row, 0), tile(row, 1)) for row in range(min(rows, MAX_PAIRS))]


def to_data_uri(picture: Image.Image) -> str:
    """Scale an image down in place to at most 256 pixels a side, and return it as a data URI."""
    picture.thumbnail((256, 256))
    return _encode_data_uri(_encode_webp(picture, scale=1))


def pick_evenly(items: Sequence[Item], count: int) -> Sequence[Item]:
    """Return at most `count` of `items`, evenly spaced, including the first and the last."""
    if len(items) <= count:
        return items
    return [items[round(step * (len(items) - 1) / (count - 1))] for step in range(count)]


def _read_layout(run: RunData, direction: str) -> dict[str, Any]:
    layout = as_mapping(run.layout.get(direction))
    columns, rows = as_list(layout.get("columns")), as_list(layout.get("rows"))
    if not columns or not rows:
        columns, rows = ["samples"], ["samples"]
    return {"columns": [str(name) for name in columns], "rows": [str(name) for name in rows]}


def _encode(paths: list[Path]) -> dict[Path, str]:
    """Return data URIs of the readable files by path, scaled down until they have at most `MAX_BYTES` together."""
    scale, compressed = 1.0, _compress(paths, scale=1)
    while (size := sum(map(len, compressed.values()))) > MAX_BYTES:
        # bytes shrink more slowly than pixels do: a small image has more detail per pixel
        scale *= 0.9 * (MAX_BYTES / size) ** 0.7
        compressed = _compress(paths, scale=scale)
    return {path: _encode_data_uri(data) for path, data in compressed.items()}


def _compress(paths: Sequence[Path], *, scale: float) -> dict[Path, bytes]:
    def compress(path: Path) -> bytes | None:
        picture = _open_image(path)
        return None if picture is None else _encode_webp(picture, scale=scale)

    # Pillow releases the GIL while it decodes, resizes and encodes
    with ThreadPoolExecutor() as pool:
        compressed = zip(paths, pool.map(compress, paths))
        return {path: data for path, data in compressed if data is not None}


def _encode_webp(picture: Image.Image, *, scale: float) -> bytes:
    if scale < 1:
        size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, format="WEBP", quality=QUALITY, method=3)
    return buffer.getvalue()


def _open_image(path: Path) -> Image.Image | None:
    try:
        with Image.open(path) as picture:
            return picture.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None


def _encode_data_uri(data: bytes) -> str:
    return "data:image/webp;base64," + base64.b64encode(data).decode("ascii")
