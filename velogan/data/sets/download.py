"""The data sets that the authors of CycleGAN publish, as folders trainA, trainB, testA and testB."""

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
"""Those that the reference implementation's documents list; cityscapes is not published there for its licence."""

MOST_BYTES = 2**34
"""The most bytes that an archive and its unpacked pictures may have, each."""

_MOST_FILES = 10**5
_TIMEOUT = 30  # seconds without a byte
_BLOCK = 2**20


def download(
    name: str,
    directory: Path,
    *,
    host: str | None = None,
    progress: Progress = lambda done, total: None,
) -> int:
    """Download the data set `name` to the new folder `directory`; return the number of its pictures.

    `progress` is called with the megabytes fetched, and all of them. The folder appears whole or not at all. Raises
    ValueError if `directory` exists or the archive is damaged, OSError if the download fails.
    """
    if directory.exists():
        raise ValueError(f"{directory} is there already: name another folder, or train on it with --data {directory}")
    address = f"{host or HOST}/{name}.zip"
    with locked_temp_dir(directory.absolute().parent, f".{name}-") as fresh:
        archive = fresh / "archive.zip"
        _fetch(address, archive, progress)
        try:
            count = _unpack(archive, fresh, name)
        except (BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
            raise ValueError(f"{address} is no whole archive ({error}): try again") from error
        archive.unlink()
        move_into_place(fresh, directory.absolute(), is_valid=lambda: True)
    return count


def _fetch(address: str, file: Path, progress: Progress) -> None:
    try:
        with urlopen(Request(address, headers={"User-Agent": "velogan"}), timeout=_TIMEOUT) as answer:
            total, done = int(answer.headers.get("Content-Length") or 0), 0
            with file.open("wb") as out:
                while block := answer.read(_BLOCK):
                    done += len(block)
                    if max(done, total) > MOST_BYTES:
                        raise OSError(f"it is larger than {MOST_BYTES >> 30} GiB")
                    out.write(block)
                    progress(done >> 20, max(done, total) >> 20)
            if done < total:
                raise OSError(f"{done:,} of {total:,} bytes came")
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise OSError(
            f"{address} cannot be downloaded ({reason}): try again, or unpack the archive from elsewhere and name its "
            "folder as --data"
        ) from error


def _unpack(archive: Path, folder: Path, name: str) -> int:
    """Extract the pictures of an archive, except hidden ones and those outside NAME/trainA and its siblings."""
    wanted = re.compile(rf"{re.escape(name)}/((?:train|test)[AB])/([^./\\\0][^/\\\0]*)")
    count = 0
    with ZipFile(archive) as packed:
        members = [(one, match) for one in packed.infolist() if (match := wanted.fullmatch(one.filename))]
        members = [(one, match) for one, match in members if not stat.S_ISLNK(one.external_attr >> 16)]
        if len(members) > _MOST_FILES or sum(one.file_size for one, _ in members) > MOST_BYTES:
            raise BadZipFile(f"it would unpack to more than {_MOST_FILES:,} files or {MOST_BYTES >> 30} GiB")
        for member, match in members:
            target = folder / match[1] / match[2]
            target.parent.mkdir(exist_ok=True)
            with packed.open(member) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out)  # at most `file_size` bytes, which zipfile holds it to
            count += 1
    if not all((folder / part).is_dir() for part in ("trainA", "trainB")):
        raise BadZipFile(f"it holds no {name}/trainA and {name}/trainB")
    return count
