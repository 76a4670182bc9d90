"""Tar files of pictures, on disk or at a web address: what names them, and reading their bytes."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from glob import glob, has_magic
from http.client import HTTPException, HTTPResponse
from itertools import product
from pathlib import Path
from typing import IO, TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

SUFFIX = ".tar"
_PACKED = re.compile(r"\.(tgz|tar\.(gz|bz2|xz|zst|lz4))$")
_WEB = ("http://", "https://")
_PAUSES = (0.5, 1, 2, 4, 8, 16)
"""Seconds to wait before a web address is asked again."""
_TIMEOUT = 60  # seconds without a byte
_PASSING = {408, 425, 429, 500, 502, 503, 504}
"""HTTP status codes after which the same request is sent again."""
_MOST = 10**6
_AT_ONCE = 16  # web addresses

Result = TypeVar("Result")


@dataclass(frozen=True)
class Shard:
    """A tar file at `address`, a path or a URL; `label` names it among others of its domain.

    `identity` changes when the file does: size and time of change, or what the server says in their place.
    """

    address: str
    label: str
    identity: str = ""

    @contextmanager
    def opened(self) -> Iterator[IO[bytes] | HTTPResponse]:
        """Read it from the beginning. Raises `OSError` that names the shard; what fails in between may be anything."""
        if self.address.startswith(_WEB):
            file: IO[bytes] | HTTPResponse = _again(self.address, lambda: _ask(self.address))
        else:
            file = open(self.address, "rb")
        with file:
            yield file

    def read(self, offset: int, size: int) -> bytes:
        """Read `size` bytes from `offset` on; `OSError` names the shard and the mend."""
        if self.address.startswith(_WEB):
            return _again(self.address, lambda: _read_range(self.address, offset, size))
        with _told(self.address), open(self.address, "rb") as file:
            file.seek(offset)
            data = file.read(size)
        if len(data) < size:
            raise changed(self.address)
        return data


def changed(address: str) -> OSError:
    """The error for a shard whose bytes differ from those that its index was made of."""
    return OSError(
        errno.EIO, "this shard has changed since it was looked through: start the command again for a new look", address
    )


def names_shards(given: str) -> bool:
    """Whether `given` is a name of shards, not of a folder."""
    return not Path(given).expanduser().is_dir() and (
        given.endswith(SUFFIX) or "::" in given or "://" in given or _PACKED.search(given) is not None
    )


def find_shards(given: str) -> tuple[Shard, ...]:
    """List what `given` names: a path or URL with WebDataset's braces `{000..099}` and `::`, or with `*`.

    Raises `ValueError` that names the shard and the mend, where one is missing or is none.
    """
    addresses = [found for part in given.split("::") for one in _braces(part) for found in _found(one, given)]
    if len(set(addresses)) < len(addresses):
        twice = next(one for one in addresses if addresses.count(one) > 1)
        raise ValueError(f"data.path (--data) {given} names {twice} twice: name each shard once")
    return identified(addresses)


def identified(addresses: list[str]) -> tuple[Shard, ...]:
    """Make shards of paths and URLs; raises `ValueError` where one is not there."""
    labels = [os.path.basename(address.partition("?")[0]) for address in addresses]
    short = len(set(labels)) == len(labels)
    shards = [Shard(one, label if short else one) for one, label in zip(addresses, labels)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return tuple(pool.map(_identified, shards))


def _braces(text: str) -> list[str]:
    """Expand `{000..012}` and `{a,b}`, as the shell and WebDataset do."""
    pieces: list[list[str]] = []
    count = 1
    for place, piece in enumerate(re.split(r"\{([^{}]*)\}", text)):
        if place % 2 == 0:
            pieces.append([piece])
        elif span := re.fullmatch(r"(\d+)\.\.(\d+)", piece):
            ends = span.groups()
            first, last = map(int, ends)
            wide = max(map(len, ends)) if any(end.startswith("0") and len(end) > 1 for end in ends) else 0
            count *= abs(last - first) + 1
            if count > _MOST:
                raise ValueError(f"data.path (--data) {text} names more than {_MOST:,} shards: mend the braces")
            step = 1 if last >= first else -1
            pieces.append([f"{number:0{wide}d}" for number in range(first, last + step, step)])
        else:
            pieces.append(piece.split(",") if "," in piece else [f"{{{piece}}}"])
    return ["".join(parts) for parts in product(*pieces)]


def _found(one: str, given: str) -> list[str]:
    if one.startswith(_WEB):
        name = one.partition("?")[0]
    elif "://" in one or one.startswith("pipe:"):
        kind = one.partition(":")[0]
        raise ValueError(
            f"data.path (--data) {one}: shards are read from paths, http:// and https://, not from {kind}: as here; "
            "name one of these (object stores give https:// addresses)"
        )
    else:
        name = one = str(Path(one).expanduser())
    if _PACKED.search(name):
        raise ValueError(
            f"data.path (--data) {one} is compressed, so no picture in it can be reached by its place: unpack it to "
            f"{SUFFIX} (pictures are compressed themselves)"
        )
    if not one.startswith(_WEB) and has_magic(one) and not os.path.lexists(one):
        paths = sorted(glob(one, recursive=True))
        if not paths:
            raise ValueError(f"data.path (--data) {given}: no file matches {one}; name shards, like 'shards-*.tar'")
        return [path for path in paths if os.path.isfile(path)]
    return [one]


def _identified(shard: Shard) -> Shard:
    try:
        if shard.address.startswith(_WEB):
            return replace(shard, identity=_again(shard.address, lambda: _web_identity(shard.address)))
        facts = os.stat(shard.address)
        if not os.path.isfile(shard.address):
            raise OSError(errno.EINVAL, "it is not a file")
    except OSError as error:
        raise ValueError(
            f"data.path (--data) {shard.address} cannot be read ({error.strerror}): bring this shard back, or name "
            "those that are there"
        ) from error
    told = facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino  # copies are given the first's time
    return replace(shard, identity=f"{os.path.realpath(shard.address)} {told}")


def _web_identity(address: str) -> str:
    """Ask for the first byte: so a server that gives no parts of files is found out before training begins."""
    with _ask(address, "bytes=0-0") as answer:
        size = answer.headers.get("Content-Range", "").partition("/")[2]
        told = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
    return f"{address.partition('?')[0]} {size} {told}"


def _read_range(address: str, offset: int, size: int) -> bytes:
    with _ask(address, f"bytes={offset}-{offset + size - 1}") as answer:
        data = answer.read(size)
        if not answer.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
            raise changed(address)
    if len(data) < size:
        raise changed(address) if answer.headers.get("Content-Length") == str(len(data)) else URLError("cut off")
    return data


def _ask(address: str, part: str = "") -> HTTPResponse:
    headers = {"Accept-Encoding": "identity", "User-Agent": "velogan", **({"Range": part} if part else {})}
    answer = urlopen(Request(address, headers=headers), timeout=_TIMEOUT)
    if part and answer.status != 206:
        answer.close()
        raise OSError(
            errno.ENOTSUP,
            "its server does not give parts of files (range requests), as object stores, nginx and Apache do: serve it "
            "by one of these, or copy the shards to a disk",
            address,
        )
    return answer


def _again(address: str, act: Callable[[], Result]) -> Result:
    """Call `act` until it works; what may pass (no answer, a busy server) is tried again for half a minute."""
    for pause in (*_PAUSES, None):
        try:
            with _told(address):
                return act()
        except _Passing as error:
            if pause is None:
                raise OSError(errno.EIO, f"{error}, {len(_PAUSES) + 1} times", address) from error
            time.sleep(pause)
    raise AssertionError


class _Passing(Exception):
    """A failure after which the same request is sent again."""


@contextmanager
def _told(address: str) -> Iterator[None]:
    """Turn errors of the web into `_Passing` or an `OSError` that names the address."""
    try:
        yield
    except HTTPError as error:
        reason = f"the server answers {error.code} {error.reason}"
        if error.code in _PASSING:
            raise _Passing(reason) from error
        if error.code == 416:
            raise changed(address) from error
        raise OSError(errno.ENOENT if error.code == 404 else errno.EACCES, reason, address) from error
    except (URLError, TimeoutError, ConnectionError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise _Passing(f"no answer ({str(reason) or type(reason).__name__})") from error
    except OSError as error:
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), address) from error
