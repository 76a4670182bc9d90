"""Checks of a data set before training on it: counts, sizes, modes, broken files, duplicates, leaks."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from velogan.data.config import DataConfig
from velogan.data.pictures.images import Picture
from velogan.data.pictures.values import PixelFormat
from velogan.data.sets.cache import check_range
from velogan.data.sets.near_duplicates import near_duplicates, thumbnail
from velogan.data.sets.prefetch import ordered_map
from velogan.data.sets.remarks import remarks
from velogan.data.sets.slices import Slices
from velogan.data.sets.sources import LETTERS, ImageSource, Sources, find_sources
from velogan.data.sets.writing import DEPTHS
from velogan.files import pluralize
from velogan.types import Progress

_DEEPER = {"uint8": "", "uint16": "16-bit ", "float32": "float32 "}
_COLOURS = {1: "grey", 3: "RGB"}
_SAMPLE = 256  # pixels of a picture
_ROWS = 256
_SHOWN = 8  # names in a line of text
_REFUSED = "training would refuse this: "


@dataclass(frozen=True)
class _Checked:
    """What was found in one file.

    `values`: the lowest and highest pixel; `sample`: some pixels; `content`: the hash of the pixels; `thumbnail`: see
    `near_duplicates`.
    """

    name: str
    reason: str = ""
    mode: str = ""
    dtype: str = ""
    size: tuple[int, int] = (0, 0)
    grey: bool = False
    values: tuple[float, float] = (0, 0)
    sample: np.ndarray = field(default_factory=lambda: np.zeros(0))
    content: str = ""
    thumbnail: np.ndarray = field(default_factory=lambda: np.zeros(0))


def check(config: DataConfig, *, progress: Progress | None = None) -> dict:
    """Read every picture of a data set and report what is in it and what training with `config` would say of it.

    Returns plain lists, dicts, strings and numbers: `folders` by split and domain (`trainA` ...), each with
    `pictures`, `width` and `height` (min, median, max, pixels), `modes`, `values` (by type: min and max), `grey` (RGB
    without colour), `unreadable`, `duplicates` (groups of equal pictures), `remarks` (what training would report or
    refuse, a line each); `leaks`: test pictures that training sees too, `exact` or nearly; `straddling`: likewise the
    pictures that would be held out for validation; `not_held_out`: why none can be, else "". Raises `ValueError` as
    `find_sources` does.
    """
    sources = find_sources(config.model_copy(update={"validation": 0}))
    held, not_held_out = sources, ""
    try:
        held = find_sources(config)
    except ValueError as error:  # the pictures are there, so the reason is the holding out
        not_held_out = str(error)
    folders: dict[str, ImageSource] = {}
    for letter, side in (("A", sources.a), ("B", sources.b)):
        folders |= {f"train{letter}": side.train} | ({f"test{letter}": side.test} if side.test else {})
    seen = _look_at(folders, progress)
    return {
        "path": list(config.path),
        "domains": {"A": sources.a.name, "B": sources.b.name},
        "aligned": sources.aligned,
        "folders": {key: _summary(key, folders[key], found, config) for key, found in seen.items()},
        "leaks": _leaks(seen),
        "straddling": _straddling(seen, held),
        "not_held_out": not_held_out,
    }


def find_leaks(folders: Mapping[str, ImageSource], *, progress: Progress | None = None) -> list[dict[str, Any]]:
    """List the pictures of folders named `test...` that occur in folders named `train...` too, as `check` does."""
    return _leaks(_look_at(folders, progress))


def _look_at(folders: Mapping[str, ImageSource], progress: Progress | None) -> dict[str, list[_Checked]]:
    total = sum(len(folder.names) for folder in folders.values())
    seen: dict[str, list[_Checked]] = {}
    done = 0
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for key, folder in folders.items():
            seen[key] = []
            for _, one in ordered_map(pool, partial(_look, folder), folder.names, ahead=64):
                seen[key].append(one)
                done += 1
                if progress:
                    progress(done, total)
    return seen


def _look(folder: ImageSource, name: str) -> _Checked:
    try:
        picture = folder.read(name)
    except OSError as error:
        return _Checked(name, reason=error.strerror or str(error))
    except ValueError as error:
        return _Checked(name, reason=str(error))
    pixels = picture.pixels
    height, width, channels = pixels.shape
    grey = channels == 3 and all(np.array_equal(pixels[..., 0], pixels[..., other]) for other in (1, 2))
    shown = pixels[..., :1] if grey else pixels  # a grey picture saved as RGB is the same picture
    content = hashlib.sha256(f"{shown.shape} {pixels.dtype}".encode())
    for top in range(0, height, _ROWS):  # a band at a time, since hashing needs a copy
        content.update(np.ascontiguousarray(shown[top : top + _ROWS]).data)
    return _Checked(
        name,
        mode=_mode(picture),
        dtype=pixels.dtype.name,
        size=(width, height),
        grey=grey,
        values=(pixels.min().item(), pixels.max().item()),
        sample=pixels.reshape(-1)[:: pixels.size // _SAMPLE | 1].copy(),
        content=content.hexdigest(),
        thumbnail=thumbnail(shown),
    )


def _mode(picture: Picture) -> str:
    """Name a picture's depth and channels: "RGBA", "16-bit grey", "float32, 5 channels"."""
    channels, depth = picture.pixels.shape[2], _DEEPER[picture.pixels.dtype.name]
    if channels not in _COLOURS:
        plain = f"{depth.strip() or '8-bit'}, {pluralize(channels, 'channel')}"
        return plain + (" and alpha" if picture.alpha is not None else "")
    alpha = {1: "+alpha", 3: "A"}[channels] if picture.alpha is not None else ""
    return depth + _COLOURS[channels] + alpha


def _summary(key: str, folder: ImageSource, found: list[_Checked], config: DataConfig) -> dict:
    good = [one for one in found if not one.reason]
    unread = [(one.name, one.reason) for one in found if one.reason]
    before = folder.skipped if isinstance(folder, Slices) else ()  # left out of its names
    groups = defaultdict(list)
    for one in good:
        groups[one.content].append(one.name)
    return {
        "directory": folder.where,
        "remarks": _remarks(key, folder, good, config),
        "pictures": len(good),
        "width": _spread([one.size[0] for one in good]),
        "height": _spread([one.size[1] for one in good]),
        "modes": dict(Counter(one.mode for one in good).most_common()),
        "values": {
            dtype: {
                "min": min(one.values[0] for one in good if one.dtype == dtype),
                "max": max(one.values[1] for one in good if one.dtype == dtype),
            }
            for dtype in sorted({one.dtype for one in good})
        },
        "grey": [one.name for one in good if one.grey],
        "unreadable": [{"name": name, "reason": reason} for name, reason in (*unread, *before)],
        "duplicates": [names for names in groups.values() if len(names) > 1],
    }


def _remarks(key: str, folder: ImageSource, good: list[_Checked], config: DataConfig) -> list[str]:
    """List what training would report or refuse of the pictures that can be read."""
    letter = LETTERS[key.endswith("B")]
    dtype = max((one.dtype for one in good), key=DEPTHS.index, default="uint8")
    form = PixelFormat(dtype=dtype, range=config.reading(letter)["value_range"])
    form = folder.format(form) if isinstance(folder, Slices) else form
    values = np.concatenate([np.zeros(0), *(one.sample for one in good if one.dtype == dtype)])
    lines = remarks(folder, form, values, letter=letter)
    try:
        check_range(folder, [one.name for one in good], form)
    except ValueError as error:
        lines.append(f"{_REFUSED}{error}")
    return lines


def _spread(values: list[int]) -> dict | None:
    return {"min": min(values), "median": median(values), "max": max(values)} if values else None


def _leaks(seen: dict[str, list[_Checked]], held: str = "test") -> list[dict]:
    """List each picture of the split `held` that equals a training picture, or nearly, with the nearest one."""
    leaks = []
    for dtype in _DEEPER:  # values of different types have different scales
        train, asked = _of_split(seen, "train", dtype), _of_split(seen, held, dtype)
        thumbnails = [np.array([one.thumbnail for _, one in split]) for split in (asked, train)]
        for number, nearest in near_duplicates(*thumbnails, dtype=dtype):
            (key, one), (other, twin) = asked[number], train[nearest]
            exact = one.content == twin.content
            leaks.append({held: f"{key}/{one.name}", "train": f"{other}/{twin.name}", "exact": exact})
    return leaks


def _of_split(seen: dict[str, list[_Checked]], split: str, dtype: str) -> list[tuple[str, _Checked]]:
    return [(key, one) for key in seen if key.startswith(split) for one in seen[key] if one.dtype == dtype]


def _straddling(seen: dict[str, list[_Checked]], sources: Sources) -> list[dict]:
    """List the pictures that would be held out for validation although training sees near duplicates of them."""
    found = []
    for side in (sources.a, sources.b):
        held = set(side.validation.names if side.validation else ())
        split: dict[str, list[_Checked]] = {"train": [], "validation": []}
        for one in seen[f"train{side.letter}"]:
            split["validation" if one.name in held else "train"].append(one)
        for leak in _leaks(split, "validation"):
            names = {part: f"train{side.letter}/{leak[part].partition('/')[2]}" for part in split}
            found.append(leak | names)
    return found


def render_text(result: dict) -> str:
    """Render the result of `check` as lines of text."""
    lines = [f"{' + '.join(result['path'])}: {result['domains']['A']} (A) and {result['domains']['B']} (B)"]
    if result["aligned"]:
        lines.append("testA and testB are aligned pairs: translations can be scored against the truth")
    for key, folder in result["folders"].items():
        modes = ", ".join(f"{count} {mode}" for mode, count in folder["modes"].items())
        lines.append(f"{key}: {pluralize(folder['pictures'], 'picture')} ({modes or 'none readable'}){_sizes(folder)}")
        deep = {dtype: values for dtype, values in folder["values"].items() if dtype != "uint8"}
        lines += [f"  {dtype} values {values['min']:g} to {values['max']:g}" for dtype, values in deep.items()]
        lines += [f"  {remark}" for remark in folder["remarks"]]
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
    if result["not_held_out"]:
        lines.append(f"{_REFUSED}{result['not_held_out']}")
    if result["straddling"]:
        pairs = [f"{one['validation']} {'=' if one['exact'] else '~'} {one['train']}" for one in result["straddling"]]
        what = "pictures for validation that training sees too, unless --data.group keeps such pictures together"
        lines.append(_some(what, pairs))
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


def _some(what: str, names: list[str]) -> str:
    shown = [name if name.isprintable() else ascii(name) for name in names[:_SHOWN]]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} {what}: {', '.join(shown)}{more}"
