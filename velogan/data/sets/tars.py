"""Members of a tar file, one after the other. Damage raises an error, where `tarfile` alone would see the end."""

from __future__ import annotations

import tarfile as tars
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import IO, Any

from velogan.data.pictures.images import READ

_BLOCK = 2**20
_ENDS = ("EOFHeaderError", "EmptyHeaderError")


class _Strict(tars.TarInfo):
    @classmethod
    def fromtarfile(cls, tarfile: tars.TarFile) -> _Strict:
        try:
            return super().fromtarfile(tarfile)
        except tars.HeaderError as error:
            if type(error).__name__ in _ENDS or not tarfile.offset:
                raise
            raise tars.ReadError(f"no member begins at byte {tarfile.offset}, where one should") from error


@contextmanager
def damage_told() -> Iterator[None]:
    """Turn all that `tarfile` raises on a damaged file into a `ValueError` with the reason."""
    try:
        yield
    except (tars.TarError, EOFError, OverflowError, MemoryError) as error:
        raise ValueError(f"damaged shard: {error}") from error


def members(file: IO[bytes]) -> Iterator[tuple[tars.TarFile, tars.TarInfo]]:
    """Yield the open tar and each member, whose content can be read until the next; `file` need not be seekable."""
    with tars.open(fileobj=file, mode="r|", tarinfo=_Strict, bufsize=_BLOCK) as tar:
        for member in tar:
            yield tar, member
            forget(tar)


def forget(tar: Any) -> None:
    """Drops the members' headers, all of which an open tar file would keep in memory."""
    tar.members = []


def is_picture(member: tars.TarInfo) -> bool:
    """Whether a member is a file with a picture's name; hidden files are not."""
    path = PurePosixPath(member.name)
    return member.isreg() and not path.name.startswith(".") and path.suffix.lower() in READ
