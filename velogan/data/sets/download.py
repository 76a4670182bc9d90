"""Download the data sets that the authors of CycleGAN publish, as folders trainA, trainB, testA and testB."""

from __future__ import annotations

import re
import shutil
import stat
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen
from zipfile import BadZipFile, ZipFile

from velogan.data.atomic_dirs import locked_temp_dir, move_into_place
from velogan.types import Progress

HOST = "https://people.eecs.berkeley.edu/~taesung_park/CycleGAN/datasets"
NAMES = (
    "apple2orange",
    "cezanne2photo",
    "facades",
    "horse2zebra",
    "iphone2dslr_flower",
    "maps",
    "monet2photo",
    "summer2winter_yosemite",
    "ukiyoe2photo",
    "vangogh2photo",
)
"""The data sets that the reference implementation lists, except cityscapes, whose licence forbids publishing it."""

MAX_BYTES = 2**34
"""Maximum number of bytes of an archive, and of its unpacked pictures together."""

_MAX_FILES = 10**5
_TIMEOUT = 30  # seconds without a received byte
_BLOCK = 2**20


def download(
    name: str,
    directory: Path,
    *,
    host: str | None = None,
    progress: Progress = lambda done, total: None,
) -> int:
    """Write the data set `name` to the new folder `directory`; return its number of pictures.

    `progress` is called with mebibytes. The folder appears complete or not at all. Raises ValueError if `directory`
    exists or the archive is damaged, OSError if the download fails.
    """
    if directory.exists():
        raise ValueError(f"{directory} exists already: name another folder, or train on it with --data {directory}")
    address = f"{host or HOST}/{name}.zip"
    with locked_temp_dir(directory.absolute().parent, f".{name}-") as folder:
        archive = folder / "archive.zip"
        _fetch(address, archive, progress)
        try:
            count = _unpack(archive, folder, name)
        except (BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
            raise ValueError(f"{address} is not a valid archive ({error}): try again") from error
        archive.unlink()
        move_into_place(folder, directory.absolute(), is_valid=lambda: True)
    return count


def _fetch(address: str, file: Path, progress: Progress) -> None:
    try:
        with urlopen(Request(address, headers={"User-Agent": "velogan"}), timeout=_TIMEOUT) as response:
            total, done = int(response.headers.get("Content-Length") or 0), 0
            with file.open("wb") as out:
                while block := response.read(_BLOCK):
                    done += len(block)
                    if max(done, total) > MAX_BYTES:
                        raise OSError(f"it is larger than {MAX_BYTES >> 30} GiB")
                    out.write(block)
                    progress(done >> 20, max(done, total) >> 20)
            if done < total:
                raise OSError(f"{done:,} of {total:,} bytes were received")
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        hint = "try again, or unpack the archive from elsewhere and name its folder as --data"
        raise OSError(f"{address} cannot be downloaded ({reason}): {hint}") from error


def _unpack(archive: Path, folder: Path, name: str) -> int:
    """Extract the files of an archive's four folders, except hidden files and links; return their number."""
    pattern = re.compile(rf"{re.escape(name)}/((?:train|test)[AB])/([^./\\\0][^/\\\0]*)")
    with ZipFile(archive) as packed:
        matches = [(member, pattern.fullmatch(member.filename)) for member in packed.infolist()]
        pictures = [
            (member, folder / match[1] / match[2])
            for member, match in matches
            if match and not stat.S_ISLNK(member.external_attr >> 16)
        ]
        if len(pictures) > _MAX_FILES or sum(member.file_size for member, _ in pictures) > MAX_BYTES:
            raise BadZipFile(f"it would unpack to more than {_MAX_FILES:,} files or {MAX_BYTES >> 30} GiB")
        for member, target in pictures:
            target.parent.mkdir(exist_ok=True)
            with packed.open(member) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out)  # at most `file_size` bytes, which zipfile ensures
    if not all((folder / part).is_dir() for part in ("trainA", "trainB")):
        raise BadZipFile(f"it holds no {name}/trainA and {name}/trainB")
    return len(pictures)
