"""Check a data set before training on it: counts, sizes, modes, damaged files, duplicates, leaks, ranges of values."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

from velogan.data.config import DataConfig
from velogan.data.pictures.images import Picture
from velogan.data.pictures.values import PixelFormat
from velogan.data.sets.cache import DEPTHS, check_range
from velogan.data.sets.prefetch import ordered_map
from velogan.data.sets.slices import Slices
from velogan.data.sets.sources import LETTERS, ImageSource, Sources, describe_skipped_files, find_sources
from velogan.files import join_first, pluralize
from velogan.types import Letter, Progress

_DEPTH_NAMES = {"uint8": "", "uint16": "16-bit ", "float32": "float32 "}
_COLOURS = {1: "grey", 3: "RGB"}
_SAMPLE = 256  # values of a picture
_ROWS = 256
_MAX_NAMES = 8  # in a line of text
_REFUSED = "training would refuse this: "

_NEAR = 4 / 255
"""Thumbnails of near duplicates differ by at most this fraction of the range of values."""
_MAX_VALUES = {"uint8": 255, "uint16": 65535}

_DARK = 0.25
"""Images are almost black if all but a thousandth of the values lie in this lowest fraction of the range."""
_CLIPPED = 0.75
"""Images are mostly clipped if more than this fraction of values is out of range; CT windows omit the air (half)."""


@dataclass(frozen=True)
class _CheckedFile:
    """The facts about one file; `reason`: why it cannot be read, else empty.

    size: width and height in pixels
    values, sample: the lowest and highest value of its pixels, and some values
    content: a hash of the pixels
    """

    name: str
    reason: str = ""
    mode: str = ""
    dtype: str = ""
    size: tuple[int, int] = (0, 0)
    is_grey: bool = False
    values: tuple[float, float] = (0, 0)
    sample: np.ndarray = field(default_factory=lambda: np.zeros(0))
    content: str = ""
    thumbnail: np.ndarray = field(default_factory=lambda: np.zeros(0))


def check(config: DataConfig, *, progress: Progress | None = None) -> dict:
    """Read every picture of a data set; report its contents, and what training with `config` would report.

    Returns plain lists, dicts, strings and numbers:

    - `folders` by split and domain (`trainA` ...), each with `pictures`, `width` and `height` (min, median, max,
      pixels), `modes`, `values` (by type: min and max), `grey` (RGB without colour), `unreadable`, `duplicates` (groups
      of equal pictures) and `remarks` (what training would report or refuse, a line each)
    - `leaks`: pairs of a test picture and a training picture that are equal (`exact`) or nearly equal
    - `straddling`: equal or nearly equal pairs of a picture to be held out and another training picture, like `leaks`
    - `not_held_out`: why no pictures can be held out, or empty

    Raises ValueError as `find_sources` does.
    """
    sources = find_sources(config.model_copy(update={"validation": 0}))
    split, not_held_out = sources, ""
    try:
        split = find_sources(config)
    except ValueError as error:  # the first call succeeded, so pictures cannot be held out
        not_held_out = str(error)
    folders: dict[str, ImageSource] = {}
    for letter, source in zip(LETTERS, (sources.a, sources.b)):
        folders |= {f"train{letter}": source.train} | ({f"test{letter}": source.test} if source.test else {})
    checked = _check_folders(folders, progress)
    return {
        "path": list(config.path),
        "domains": {"A": sources.a.name, "B": sources.b.name},
        "aligned": sources.aligned,
        "folders": {key: _summarize_folder(key, folders[key], files, config) for key, files in checked.items()},
        "leaks": _find_leaks(checked, "test"),
        "straddling": _find_straddling(checked, split),
        "not_held_out": not_held_out,
    }


def find_leaks(folders: Mapping[str, ImageSource], *, progress: Progress | None = None) -> list[dict[str, Any]]:
    """List pictures of folders `test...` that equal one of folders `train...`, exactly or nearly, as `check` does."""
    return _find_leaks(_check_folders(folders, progress), "test")


def domain_warnings(source: ImageSource, pixel_format: PixelFormat, values: np.ndarray, *, letter: Letter) -> list[str]:
    """List notes on scans or skipped files, and a warning if the range does not suit `values`, a sample of pixels."""
    note = source.note if isinstance(source, Slices) else describe_skipped_files(source.directory, no_scans=False)
    return [line for line in (note, range_warning(pixel_format, values, letter=letter)) if line]


def range_warning(pixel_format: PixelFormat, values: np.ndarray, *, letter: Letter) -> str:
    """Return a warning if a domain's range makes its images almost black or mostly clipped; else an empty string.

    8-bit images without a declared range need no warning; floats without one are rejected by `check_range`.
    """
    has_default_range = pixel_format.range is None and pixel_format.dtype in ("uint8", "float32")
    if not values.size or pixel_format.own_scale or has_default_range:
        return ""
    low, high = pixel_format.range or (0, float(np.iinfo(pixel_format.dtype).max))
    hint = f"--data.range-{letter.lower()} {values.min():g} {values.max():g} would show all of them"
    outside = float(((values < low) | (values > high)).mean())
    if outside > _CLIPPED:
        return f"{outside:.0%} of the values lie outside {low:g} to {high:g} and are clipped: {hint}"
    if np.quantile(values, 0.999) < low + _DARK * (high - low):
        return f"almost black: values are {values.min():g} to {values.max():g}, of {low:g} to {high:g}: {hint}"
    return ""


def _check_folders(folders: Mapping[str, ImageSource], progress: Progress | None) -> dict[str, list[_CheckedFile]]:
    total = sum(len(folder.names) for folder in folders.values())
    checked: dict[str, list[_CheckedFile]] = {key: [] for key in folders}
    done = 0
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for key, folder in folders.items():
            for _, file in ordered_map(pool, partial(_check_file, folder), folder.names, ahead=64):
                checked[key].append(file)
                done += 1
                if progress:
                    progress(done, total)
    return checked


def _check_file(folder: ImageSource, name: str) -> _CheckedFile:
    try:
        picture = folder.read(name)
    except (OSError, ValueError) as error:
        return _CheckedFile(name, reason=getattr(error, "strerror", None) or str(error))
    pixels = picture.pixels
    height, width, channels = pixels.shape
    is_grey = channels == 3 and all(np.array_equal(pixels[..., 0], pixels[..., other]) for other in (1, 2))
    unique_channels = pixels[..., :1] if is_grey else pixels  # a grey picture saved as RGB is the same picture
    content = hashlib.sha256(f"{unique_channels.shape} {pixels.dtype}".encode())
    for top in range(0, height, _ROWS):  # a band at a time, since hashing needs a copy
        content.update(np.ascontiguousarray(unique_channels[top : top + _ROWS]).data)
    return _CheckedFile(
        name,
        mode=_describe_mode(picture),
        dtype=pixels.dtype.name,
        size=(width, height),
        is_grey=is_grey,
        values=(pixels.min().item(), pixels.max().item()),
        sample=pixels.reshape(-1)[:: pixels.size // _SAMPLE | 1].copy(),
        content=content.hexdigest(),
        thumbnail=_make_thumbnail(unique_channels),
    )


def _describe_mode(picture: Picture) -> str:
    """Describe a picture's depth and channels, for example "RGBA", "16-bit grey" or "float32, 5 channels"."""
    channels, depth = picture.pixels.shape[2], _DEPTH_NAMES[picture.pixels.dtype.name]
    has_alpha = picture.alpha is not None
    if channels not in _COLOURS:
        return f"{depth.strip() or '8-bit'}, {pluralize(channels, 'channel')}{' and alpha' if has_alpha else ''}"
    return depth + _COLOURS[channels] + ({1: "+alpha", 3: "A"}[channels] if has_alpha else "")


def _make_thumbnail(pixels: np.ndarray) -> np.ndarray:
    """Reduce `(H, W, C)` to the means of 8x8 boxes in three channels, `(192,)` float32; scale integers to 0..1."""
    if pixels.shape[2] not in (1, 3):
        pixels = pixels.mean(axis=2, keepdims=True, dtype=np.float32)
    planes = []
    for channel in range(pixels.shape[2]):  # one at a time, since each is a copy
        plane = np.ascontiguousarray(pixels[..., channel], dtype="u1" if pixels.dtype == np.uint8 else "f4")
        planes.append(np.asarray(Image.fromarray(plane).resize((8, 8), Image.Resampling.BOX), np.float32))
    return np.stack(planes * (3 // len(planes)), axis=-1).reshape(-1) / np.float32(
        _MAX_VALUES.get(pixels.dtype.name, 1)
    )


def _summarize_folder(key: str, folder: ImageSource, files: list[_CheckedFile], config: DataConfig) -> dict:
    readable = [file for file in files if not file.reason]
    unreadable = [(file.name, file.reason) for file in files if file.reason]
    unreadable += folder.skipped if isinstance(folder, Slices) else ()  # unreadable scans are not among its names
    by_content = defaultdict(list)
    for file in readable:
        by_content[file.content].append(file.name)
    values = {
        dtype: [value for file in readable if file.dtype == dtype for value in file.values]
        for dtype in sorted({file.dtype for file in readable})
    }
    return {
        "directory": folder.location,
        "remarks": _list_warnings(key, folder, readable, config),
        "pictures": len(readable),
        "width": _min_median_max([file.size[0] for file in readable]),
        "height": _min_median_max([file.size[1] for file in readable]),
        "modes": dict(Counter(file.mode for file in readable).most_common()),
        "values": {dtype: {"min": min(limits), "max": max(limits)} for dtype, limits in values.items()},
        "grey": [file.name for file in readable if file.is_grey],
        "unreadable": [{"name": name, "reason": reason} for name, reason in unreadable],
        "duplicates": [names for names in by_content.values() if len(names) > 1],
    }


def _list_warnings(key: str, folder: ImageSource, readable: list[_CheckedFile], config: DataConfig) -> list[str]:
    """List what training would report about the readable pictures, and why it would refuse them."""
    letter = LETTERS[key.endswith("B")]
    dtype = max((file.dtype for file in readable), key=DEPTHS.index, default="uint8")
    pixel_format = PixelFormat(dtype=dtype, range=config.read_options(letter)["value_range"])
    pixel_format = folder.format(pixel_format) if isinstance(folder, Slices) else pixel_format
    values = np.concatenate([np.zeros(0), *(file.sample for file in readable if file.dtype == dtype)])
    lines = domain_warnings(folder, pixel_format, values, letter=letter)
    try:
        check_range(folder, [file.name for file in readable], pixel_format)
    except ValueError as error:
        lines.append(f"{_REFUSED}{error}")
    return lines


def _min_median_max(values: list[int]) -> dict | None:
    return {"min": min(values), "median": median(values), "max": max(values)} if values else None


def _find_leaks(checked: Mapping[str, list[_CheckedFile]], split: str) -> list[dict]:
    """List pictures of `split` that equal a training picture, exactly or nearly, with the nearest training picture."""
    leaks = []
    for dtype in DEPTHS:  # values of different types have different scales
        train, other = _files_of_split(checked, "train", dtype), _files_of_split(checked, split, dtype)
        if not train:
            continue
        thumbnails = np.array([file.thumbnail for _, file in train])
        max_distance = _NEAR * (1 if dtype == "uint8" else thumbnails.max() - thumbnails.min())
        for key, file in other:
            distance = np.abs(thumbnails - file.thumbnail).max(axis=1)
            train_key, nearest = train[int(distance.argmin())]
            if distance.min() <= max_distance:
                pair = {split: f"{key}/{file.name}", "train": f"{train_key}/{nearest.name}"}
                leaks.append({**pair, "exact": file.content == nearest.content})
    return leaks


def _files_of_split(
    checked: Mapping[str, list[_CheckedFile]], split: str, dtype: str
) -> Sequence[tuple[str, _CheckedFile]]:
    return [(key, file) for key in checked if key.startswith(split) for file in checked[key] if file.dtype == dtype]


def _find_straddling(checked: Mapping[str, list[_CheckedFile]], sources: Sources) -> list[dict]:
    """List pairs of near duplicates that holding out would split into validation and training."""
    straddling = []
    for source in (sources.a, sources.b):
        held_out = set(source.validation.names if source.validation else ())
        split: dict[str, list[_CheckedFile]] = {"train": [], "validation": []}
        for file in checked[f"train{source.letter}"]:
            split["validation" if file.name in held_out else "train"].append(file)
        for leak in _find_leaks(split, "validation"):
            names = {part: f"train{source.letter}/{leak[part].partition('/')[2]}" for part in split}
            straddling.append(leak | names)
    return straddling


def render_text(result: dict) -> str:
    """Render the result of `check` as lines of text."""
    lines = [f"{' + '.join(result['path'])}: {result['domains']['A']} (A) and {result['domains']['B']} (B)"]
    if result["aligned"]:
        lines.append("testA and testB are aligned pairs: translations can be scored against the truth")
    for key, folder in result["folders"].items():
        modes = ", ".join(f"{count} {mode}" for mode, count in folder["modes"].items())
        lines.append(
            f"{key}: {pluralize(folder['pictures'], 'picture')} ({modes or 'none readable'}){_describe_sizes(folder)}"
        )
        deep = {dtype: values for dtype, values in folder["values"].items() if dtype != "uint8"}
        lines += [f"  {dtype} values {values['min']:g} to {values['max']:g}" for dtype, values in deep.items()]
        lines += [f"  {remark}" for remark in folder["remarks"]]
        if folder["grey"]:
            lines.append(f"  {_list_first('without colour', folder['grey'])}")
        if folder["unreadable"]:
            unreadable = [f"{file['name']} ({file['reason']})" for file in folder["unreadable"]]
            lines.append(f"  {_list_first('cannot be read', unreadable)}")
        if folder["duplicates"]:
            lines.append(f"  {_list_first('equal pictures', [' = '.join(names) for names in folder['duplicates']])}")
    if result["not_held_out"]:
        lines.append(f"{_REFUSED}{result['not_held_out']}")
    for key, split, description in (
        ("leaks", "test", "test pictures that are training pictures too (~ almost equal, saved again)"),
        (
            "straddling",
            "validation",
            "pictures for validation that are training pictures too, unless --data.group keeps such pictures together",
        ),
    ):
        if pairs := [f"{pair[split]} {'=' if pair['exact'] else '~'} {pair['train']}" for pair in result[key]]:
            lines.append(_list_first(description, pairs))
    return "\n".join(lines)


def _describe_sizes(folder: dict) -> str:
    if folder["width"] is None:
        return ""
    widths, heights = folder["width"], folder["height"]
    if widths["min"] == widths["max"] and heights["min"] == heights["max"]:
        return f", all {widths['min']}x{heights['min']}"
    return (
        f", width {widths['min']} to {widths['max']} (median {widths['median']:g}), "
        f"height {heights['min']} to {heights['max']} (median {heights['median']:g})"
    )


def _list_first(description: str, names: list[str]) -> str:
    shown = join_first([name if name.isprintable() else ascii(name) for name in names], _MAX_NAMES)
    return f"{len(names)} {description}: {shown}"
