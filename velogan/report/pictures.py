"""Sample grids as WebP data URIs, within a bound on the page's size."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from velogan.report.facts import Facts, listing, mapping

MOST_TIMES = 24
MOST_PAIRS = 6
MOST_BYTES = 3_300_000  # a third more as base64
Item = TypeVar("Item")
GAP = 2  # pixels between the pictures of a grid
QUALITY = 82


def galleries(runs: list[Facts]) -> list[dict[str, Any]]:
    """Grids over training time, one entry per run and direction.

    An entry holds `run` (its number), `direction`, `columns`, `rows` (names of the pictures),
    `size` and `gap` (of the grid files, in pixels) and `frames`: `[{"images": int, "uri": str}]`, at most
    `MOST_TIMES` in even steps, all entries together at most `MOST_BYTES` before base64.
    """
    times = MOST_TIMES if len(runs) == 1 else max(4, 2 * MOST_TIMES // len(runs))
    chosen = [
        (number, facts, direction, evenly(sorted(files), times))
        for number, facts in enumerate(runs)
        for direction, files in facts.grids.items()
    ]
    encoded = _encode([facts.grids[way][seen] for _, facts, way, seens in chosen for seen in seens])
    entries = []
    for number, facts, direction, seens in chosen:
        frames = [
            {"images": seen, "uri": uri}
            for seen in seens
            if (uri := encoded.get(facts.grids[direction][seen])) is not None
        ]
        if frames:
            with Image.open(facts.grids[direction][frames[-1]["images"]]) as grid:
                size = grid.size
            entry = {"run": number, "direction": direction, "size": size, "gap": GAP, "frames": frames}
            entries.append(entry | _layout(facts, direction))
    return entries


def before_after(facts: Facts) -> list[tuple[str, str]]:
    """The newest `(input, translated)` pairs from A to B as data URIs; none if the layout is unknown."""
    layout = _layout(facts, "a2b")
    files = facts.grids.get("a2b", {})
    if layout["columns"][:2] != ["input", "translated"] or not files:
        return []
    sheet = _open(files[max(files)])
    if sheet is None:
        return []
    columns, rows = len(layout["columns"]), len(layout["rows"])
    width, height = (sheet.width + GAP) / columns, (sheet.height + GAP) / rows
    if min(width, height) < GAP + 1:
        return []

    def tile(row: int, column: int) -> str:
        left, top = round(column * width), round(row * height)
        return inline(sheet.crop((left, top, round(left + width - GAP), round(top + height - GAP))))

    return [(tile(row, 0), tile(row, 1)) for row in range(min(rows, MOST_PAIRS))]


def inline(picture: Image.Image) -> str:
    """A picture as a data URI, made smaller where a side has more than 256 pixels."""
    picture.thumbnail((256, 256))
    return _uri(_webp(picture, scale=1))


def evenly(items: Sequence[Item], most: int) -> Sequence[Item]:
    """At most `most` of `items` in even steps, the first and the last among them."""
    if len(items) <= most:
        return items
    return [items[round(step * (len(items) - 1) / (most - 1))] for step in range(most)]


def _layout(facts: Facts, direction: str) -> dict[str, Any]:
    layout = mapping(facts.layout.get(direction))
    columns, rows = listing(layout.get("columns")), listing(layout.get("rows"))
    if not columns or not rows:
        columns, rows = ["samples"], ["samples"]
    return {"columns": [str(name) for name in columns], "rows": [str(name) for name in rows]}


def _encode(paths: list[Path]) -> dict[Path, str]:
    """Data URIs of the files that can be read, scaled down until together they have at most `MOST_BYTES`."""
    probes = evenly(paths, 8)
    scale = _fitting(1, _total(_compress(probes, scale=1)) * len(paths) / max(1, len(probes)))
    compressed = _compress(paths, scale=scale)
    while _total(compressed) > MOST_BYTES:
        scale = _fitting(scale, _total(compressed))
        compressed = _compress(paths, scale=scale)
    return {path: _uri(data) for path, data in compressed.items()}


def _fitting(scale: float, size: float) -> float:
    # bytes shrink more slowly than pixels do, as a small picture has more detail in each
    return scale if size <= MOST_BYTES else 0.9 * scale * (MOST_BYTES / size) ** 0.7


def _total(compressed: dict[Path, bytes]) -> int:
    return sum(map(len, compressed.values()))


def _compress(paths: Sequence[Path], *, scale: float) -> dict[Path, bytes]:
    def compress(path: Path) -> bytes | None:
        picture = _open(path)
        return None if picture is None else _webp(picture, scale=scale)

    # Pillow releases Python's lock while it decodes, resizes and encodes
    with ThreadPoolExecutor() as pool:
        found = zip(paths, pool.map(compress, paths))
        return {path: data for path, data in found if data is not None}


def _webp(picture: Image.Image, *, scale: float) -> bytes:
    if scale < 1:
        size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, format="WEBP", quality=QUALITY, method=3)
    return buffer.getvalue()


def _open(path: Path) -> Image.Image | None:
    try:
        with Image.open(path) as picture:
            return picture.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None


def _uri(data: bytes) -> str:
    return "data:image/webp;base64," + base64.b64encode(data).decode("ascii")
