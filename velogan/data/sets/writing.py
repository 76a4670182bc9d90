"""Writing prepared pictures: decoded and resized in threads, then brought to one type and number of channels."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from velogan.data.config import DataConfig
from velogan.data.pictures.preprocess import prepare
from velogan.data.pictures.values import Range, can_hold_range, common_channels, promote_dtype, to_channels
from velogan.data.sets.prefetch import ordered_map
from velogan.data.sets.sources import ImageSource, LabelMaps
from velogan.types import Progress

DEPTHS = ("uint8", "uint16", "float32")
"""The types of prepared pixels, the shallowest first."""


def to_disk(file: IO[Any]) -> None:
    """Wait until what was written to `file` is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def write_raw(
    path: Path,
    folder: ImageSource,
    config: DataConfig,
    pool: ThreadPoolExecutor,
    *,
    test: bool,
    progress: Progress | None,
) -> dict[str, Any]:
    """Write every picture with its own type and channels, as `conform` takes them.

    `test`: as in `cache.open_domain`. Returns `names`, `shapes` (H, W, C), `dtypes`, and `skipped` (names with
    reasons). Raises `OSError` if the file cannot be written.
    """
    index: dict[str, Any] = {"names": [], "shapes": [], "dtypes": [], "skipped": []}
    prepare_one = partial(_prepare_one, folder, config, test)
    with path.open("wb") as file:
        prepared = ordered_map(pool, prepare_one, folder.names, ahead=4 * (config.workers or os.cpu_count() or 1))
        for done, (name, result) in enumerate(prepared, start=1):
            if isinstance(result, str):
                index["skipped"].append((name, result))
            else:
                index["names"].append(name)
                index["shapes"].append(result.shape)
                index["dtypes"].append(str(result.dtype))
                file.write(np.ascontiguousarray(result).data)
            if progress:
                progress(done, len(folder.names))
        to_disk(file)
    return index


def conform(path: Path, index: dict[str, Any], channels: int | None, value_range: Range | None) -> None:
    """Convert what `write_raw` wrote to the deepest type and to `channels` (None: `common_channels`).

    `index` becomes that for JSON, with the one `dtype` of all.
    """
    types, shapes = index.pop("dtypes"), index["shapes"]
    dtype = max(types, key=DEPTHS.index, default="uint8")
    wanted = channels or common_channels([shape[2] for shape in shapes])
    index["dtype"] = dtype
    plain = value_range is None or all(can_hold_range(kind, value_range) for kind in types)
    if plain and set(types) <= {dtype} and {shape[2] for shape in shapes} <= {wanted}:
        return
    named = list(zip(index["names"], shapes, types))
    index |= {"names": [], "shapes": []}
    aside = path.with_name("raw.bin")
    path.rename(aside)
    raw, start = np.memmap(aside, np.uint8, "r"), 0
    with path.open("wb") as file:
        for name, shape, kind in named:
            stop = start + int(np.prod(shape)) * np.dtype(kind).itemsize
            picture, start = raw[start:stop].view(kind).reshape(shape), stop
            try:
                picture = to_channels(promote_dtype(picture, dtype, value_range), wanted)
            except ValueError as error:
                index["skipped"].append((name, str(error)))
                continue
            index["names"].append(name)
            index["shapes"].append(picture.shape)
            file.write(np.ascontiguousarray(picture).data)
        to_disk(file)
    del raw
    aside.unlink()


def _prepare_one(folder: ImageSource, config: DataConfig, test: bool, name: str) -> np.ndarray | str:
    """One prepared picture, or the reason why it cannot be read; that of an unreadable file is in the entry's key."""
    try:
        return prepare(folder.read(name).pixels, config, test=test, nearest=isinstance(folder, LabelMaps))
    except OSError as error:
        reason, where = error.strerror or str(error), folder.path_of(name)
    except ValueError as error:
        return str(error)
    if "unreadable" not in folder.content(name):
        raise ValueError(f"data.path (--data) {where} could be read, and then could not ({reason}): start again")
    return reason
