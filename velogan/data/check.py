"""A look at a data set before training on it: counts, sizes, modes, broken files, duplicates, leaks."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image

from velogan.data.config import DataConfig
from velogan.data.images import read_image
from velogan.data.sources import Folder, find_sources

_NEAR = 4
"""Levels of 255 by which 8x8 thumbnails of one picture, saved twice, may differ."""

_MODES = {"L": "grey", "1": "black and white", "P": "palette", "I": "32-bit grey", "F": "floating-point grey"}


@dataclass(frozen=True)
class _Seen:
    """What was found in one file: `content` is the pixels' hash, `thumbnail` their 8x8 means `(192,)`."""

    name: str
    reason: str = ""
    mode: str = ""
    size: tuple[int, int] = (0, 0)
    grey: bool = False
    content: str = ""
    thumbnail: np.ndarray | None = None


def check(path: Iterable[str], *, progress: Callable[[int, int], None] | None = None) -> dict:
    """Read every picture of a data set and say what is in it; `path` as in `DataConfig.path`.

    Returns plain lists, dicts, strings and numbers: `folders` by split and domain (`trainA` ...), each with
    `pictures`, `width` and `height` (min, median, max, pixels), `modes`, `grey`, `unreadable`, `duplicates`
    (groups of equal pictures), and `leaks`: test pictures that training sees too, `exact` or almost. Raises
    `ValueError` as `find_sources` does.
    """
    config = DataConfig(path=tuple(path))
    sources = find_sources(config)
    folders: dict[str, Folder] = {}
    for letter, side in (("A", sources.a), ("B", sources.b)):
        folders |= {f"train{letter}": side.train} | ({f"test{letter}": side.test} if side.test else {})
    total = sum(len(folder.names) for folder in folders.values())
    seen: dict[str, list[_Seen]] = {}
    done = 0
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for key, folder in folders.items():
            seen[key] = []
            for one in pool.map(partial(_look, folder.directory), folder.names):
                seen[key].append(one)
                done += 1
                if progress:
                    progress(done, total)
    return {
        "path": list(config.path),
        "domains": {"A": sources.a.name, "B": sources.b.name},
        "aligned": sources.aligned,
        "folders": {key: _summary(folders[key], found) for key, found in seen.items()},
        "leaks": _leaks(seen),
    }


def _look(directory: Path, name: str) -> _Seen:
    try:
        with Image.open(directory / name) as picture:
            mode = picture.mode
        pixels = read_image(directory / name)
    except (OSError, ValueError, SyntaxError) as error:
        return _Seen(name, reason=_reason(error))
    height, width, _ = pixels.shape
    grey = bool(np.array_equal(pixels[..., 0], pixels[..., 1]) and np.array_equal(pixels[..., 1], pixels[..., 2]))
    content = hashlib.sha256(f"{width}x{height}".encode())
    content.update(np.ascontiguousarray(pixels).data)
    shown = "16-bit grey" if mode.startswith("I;16") else _MODES.get(mode, mode)
    small = np.asarray(Image.fromarray(pixels).resize((8, 8), Image.Resampling.BOX), np.int16).reshape(-1)
    return _Seen(name, mode=shown, size=(width, height), grey=grey, content=content.hexdigest(), thumbnail=small)


def _reason(error: Exception) -> str:
    if isinstance(error, Image.UnidentifiedImageError):
        return "not a picture that can be read"
    return getattr(error, "strerror", None) or str(error)


def _summary(folder: Folder, found: list[_Seen]) -> dict:
    good = [one for one in found if not one.reason]
    groups = defaultdict(list)
    for one in good:
        groups[one.content].append(one.name)
    return {
        "directory": str(folder.directory),
        "pictures": len(good),
        "width": _spread([one.size[0] for one in good]),
        "height": _spread([one.size[1] for one in good]),
        "modes": dict(Counter(one.mode for one in good).most_common()),
        "grey": [one.name for one in good if one.grey],
        "unreadable": [{"name": one.name, "reason": one.reason} for one in found if one.reason],
        "duplicates": [names for names in groups.values() if len(names) > 1],
    }


def _spread(values: list[int]) -> dict | None:
    return {"min": min(values), "median": median(values), "max": max(values)} if values else None


def _leaks(seen: dict[str, list[_Seen]]) -> list[dict]:
    """List each test picture that is also a training picture, maybe saved again, with the nearest one."""
    train = [(f"{key}/{one.name}", one) for key in seen if key[:5] == "train" for one in seen[key]]
    train = [(name, one) for name, one in train if one.thumbnail is not None]
    if not train:
        return []
    known = np.stack([one.thumbnail for _, one in train if one.thumbnail is not None])
    leaks = []
    for key in (key for key in seen if key[:4] == "test"):
        for one in (one for one in seen[key] if one.thumbnail is not None):
            distance = np.abs(known - one.thumbnail).max(axis=1)
            nearest = int(distance.argmin())
            if distance[nearest] <= _NEAR:
                name, twin = train[nearest]
                leaks.append({"test": f"{key}/{one.name}", "train": name, "exact": one.content == twin.content})
    return leaks


def render_text(result: dict) -> str:
    """Say what `check` found, in lines for a person."""
    lines = [f"{' + '.join(result['path'])}: {result['domains']['A']} (A) and {result['domains']['B']} (B)"]
    if result["aligned"]:
        lines.append("testA and testB are aligned pairs: translations can be scored against the truth")
    for key, folder in result["folders"].items():
        modes = ", ".join(f"{count} {mode}" for mode, count in folder["modes"].items())
        lines.append(f"{key}: {folder['pictures']} pictures ({modes or 'none readable'}){_sizes(folder)}")
        if folder["grey"]:
            lines.append(f"  {_some('without colour', folder['grey'])}")
        if folder["unreadable"]:
            broken = [f"{one['name']} ({one['reason']})" for one in folder["unreadable"]]
            lines.append(f"  {_some('cannot be read', broken)}")
        if folder["duplicates"]:
            lines.append(f"  {_some('equal pictures', [' = '.join(names) for names in folder['duplicates']])}")
    if result["leaks"]:
        leaks = [f"{leak['test']} {'=' if leak['exact'] else '~'} {leak['train']}" for leak in result["leaks"]]
        lines.append(_some("test pictures that training sees too (~ almost equal, saved again)", leaks))
    return "\n".join(lines)


def _sizes(folder: dict) -> str:
    if folder["width"] is None:
        return ""
    wide, high = folder["width"], folder["height"]
    if wide["min"] == wide["max"] and high["min"] == high["max"]:
        return f", all {wide['min']}x{high['min']}"
    return (
        f", width {wide['min']} to {wide['max']} (median {wide['median']:g}), "
        f"height {high['min']} to {high['max']} (median {high['median']:g})"
    )


def _some(what: str, names: list[str], limit: int = 8) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{len(names)} {what}: {', '.join(names[:limit])}{more}"
