"""Reads files of `torch.save` without running code that they may contain."""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MAX_BYTES = 4 * 2**30
"""Maximum size of a file, and of its tensors in memory; the widest networks in use take a tenth."""

_MAX_PICKLE_BYTES = 2**26
_ZIP = b"PK\x03\x04"


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Load the tensors of a `.pth` file by name, from its top level or its entry `state_dict`, onto the CPU.

    Raises ValueError if the file is damaged or too large, contains anything but named tensors, or requests a function
    call, which is not executed.
    """
    if not file.is_file():
        raise ValueError(f"{file} is not a file: name a .pth file, or a folder that contains some")
    _check_size(file)
    content = _load(file)
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping):
        raise ValueError(f"{file} contains a {type(content).__name__}, not tensors by name: save a state_dict")
    if not content:
        raise ValueError(f"{file} contains no tensors: name another file")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor) or value.layout is not torch.strided:
            kind = f"a {type(value).__name__}" if not isinstance(value, Tensor) else "a tensor that is not strided"
            raise ValueError(f"{file}: {str(name)[:80]!r} is {kind}: only a state_dict, tensors by name, is accepted")
    if sum(value.numel() * 4 for value in content.values()) > MAX_BYTES:
        raise ValueError(f"{file} describes tensors of more than {MAX_BYTES // 2**30} GiB: not a network of velogan")
    return dict(content)


def _check_size(file: Path) -> None:
    size = file.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(
            f"{file} has {size / 2**30:.1f} GiB, and at most {MAX_BYTES // 2**30} are accepted: name another file"
        )
    with file.open("rb") as opened:
        if opened.read(4) != _ZIP:
            return
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise ValueError(f"{file} is not a file of torch.save, or is damaged ({error}): name another file") from None
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError(f"{file} is compressed, unlike files of torch.save: name another file")
    if any(entry.filename.endswith(".pkl") and entry.file_size > _MAX_PICKLE_BYTES for entry in entries):
        raise ValueError(
            f"{file} describes its tensors in more than {_MAX_PICKLE_BYTES // 2**20} MiB: name another file"
        )


def _load(file: Path) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a hostile file may make the library raise anything
        text = " ".join(str(error).split())
        if match := re.search(r"GLOBAL ([\w.]+)|[Uu]nsupported class ([\w.]+)", text):
            name = match[1] or match[2]
            raise ValueError(
                f"{file} is rejected, and no code of it was run: it requests {name}, which weights do not need; get it "
                "as a state_dict from a source that you trust"
            ) from None
        # torch's own advice, to set weights_only=False, would be dangerous
        reason = "" if "weights_only" in text else f" ({text[:200] or type(error).__name__})"
        raise ValueError(
            f"{file} is not a file of torch.save, or is damaged{reason}: name a .pth file that contains a state_dict"
        ) from None
