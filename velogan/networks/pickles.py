"""Reading a file that `torch.save` wrote, without running what it may hold."""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MOST_BYTES = 4 * 2**30
"""The largest file, and the most that its tensors may take; the widest networks of use take a tenth."""

_MOST_PICKLE = 2**26
_ZIP = b"PK\x03\x04"


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors by name that a `.pth` file holds, by itself or as its `state_dict`, on the CPU.

    ValueError, which says why, where it is damaged or too large, holds anything but named tensors, or asks for a
    function to be called: no function is.
    """
    if not file.is_file():
        raise ValueError(f"{file} is no file: name a .pth file, or a folder that holds some")
    _check_size(file)
    found = _load(file)
    if isinstance(found, Mapping) and isinstance(found.get("state_dict"), Mapping):
        found = found["state_dict"]
    if not isinstance(found, Mapping):
        raise ValueError(f"{file} holds a {type(found).__name__}, not tensors by name: save a state_dict")
    if not found:
        raise ValueError(f"{file} holds no tensors: name another file")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, Tensor) or value.layout is not torch.strided:
            what = f"a {type(value).__name__}" if not isinstance(value, Tensor) else "no plain tensor"
            raise ValueError(f"{file}: {str(name)[:80]!r} holds {what}: only a state_dict, tensors by name, is taken")
    if sum(value.numel() * 4 for value in found.values()) > MOST_BYTES:
        raise ValueError(f"{file} describes tensors of more than {MOST_BYTES // 2**30} GiB: that is no network of ours")
    return dict(found)


def _check_size(file: Path) -> None:
    size = file.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(
            f"{file} has {size / 2**30:.1f} GiB, and at most {MOST_BYTES // 2**30} are taken: name another"
        )
    with file.open("rb") as opened:
        if opened.read(4) != _ZIP:
            return
    try:
        with zipfile.ZipFile(file) as archive:
            parts = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise ValueError(f"{file} is no file of torch.save, or a damaged one ({error}): name another") from None
    if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
        raise ValueError(f"{file} is compressed inside, as torch.save never does: name another file")
    if any(part.filename.endswith(".pkl") and part.file_size > _MOST_PICKLE for part in parts):
        raise ValueError(f"{file} describes its tensors in more than {_MOST_PICKLE // 2**20} MiB: name another file")


def _load(file: Path) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a hostile file makes the library raise
        text = " ".join(str(error).split())
        if asked := re.search(r"GLOBAL ([\w.]+)|[Uu]nsupported class ([\w.]+)", text):
            name = asked[1] or asked[2]
            raise ValueError(
                f"{file} is refused, and nothing of it was run: it asks for {name}, and weights alone need none; get "
                "it from somebody whom you trust, as a state_dict"
            ) from None
        why = "" if "weights_only" in text else f" ({text[:200] or type(error).__name__})"  # that advice would be bad
        raise ValueError(
            f"{file} is no file of torch.save, or a damaged one{why}: name a .pth file that holds a state_dict"
        ) from None
