"""Shared helpers: the version, atomic writes, plain YAML, number formatting, checks of folders and extras."""

from __future__ import annotations

import difflib
import hashlib
import os
import shlex
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

__version__ = "0.1.0"


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file in the folder of `path`, and rename the file to `path` at the end.

    Readers see the old or the new content, never a part. Raises OSError, with `path`, if writing fails.
    """
    tmp_path = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield tmp_path
        with open(tmp_path, "rb") as file:
            os.fsync(file.fileno())
        os.replace(tmp_path, path)
    except BaseException as error:
        with suppress(OSError):
            tmp_path.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def create_private_folder(folder: Path) -> Path:
    """Create a folder for compiled code, and its parent, with mode 0700; return the folder.

    Raises ValueError if another user (except root) may write to it, or may replace it by writing to its parent.
    """
    for path in (folder.parent, folder):
        if not path.exists():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not folder.parent.stat().st_mode & stat.S_ISVTX:  # in folders like /tmp only the owner may replace a file
        check_not_shared(folder.parent)
    check_not_shared(folder)
    return folder


def check_not_shared(path: Path) -> None:
    """Raise ValueError if another user (except root) may write to `path`, from which code is loaded."""
    status = path.stat()
    if status.st_uid not in (os.getuid(), 0):
        raise ValueError(
            f"{path} belongs to another user, who could put any code there for this program to run: set the "
            "environment variable VELOGAN_CACHE to a folder of your own"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ValueError(
            f"other users may write to {path} and could put any code there for this program to run: if its content is "
            f"trusted, run `chmod go-w {shlex.quote(str(path))}`; or set the environment variable VELOGAN_CACHE to "
            "another folder"
        )


def write_text(path: Path, text: str) -> None:
    """Write a file by `atomic_write`; characters that UTF-8 cannot encode become `?`. Raises OSError with a hint."""
    try:
        with atomic_write(path) as tmp_path:
            tmp_path.write_bytes(text.encode("utf-8", errors="replace"))
    except OSError as error:
        message = f"{error.strerror} while writing this file: make room, or make it writable, and start again"
        raise OSError(error.errno, message, str(path)) from error


def parse_yaml(text: str) -> Any:
    """Return plain values from YAML. Raises ValueError for invalid or deeply nested text, aliases and repeated keys."""
    try:
        return yaml.load(text, _PlainLoader)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


class _PlainLoader(yaml.SafeLoader):
    """A YAML loader that rejects objects, repeated keys, and aliases, by which a few lines can expand to gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not supported; write the value itself")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        lines: dict[Any, int] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            line = key.start_mark.line + 1
            if (first := lines.setdefault(key.value, line)) != line:
                raise yaml.YAMLError(f"{key.value} is repeated, in lines {first} and {line}: remove one of them")
        return super().construct_mapping(node, deep)


def looks_like_file_name(path: Path) -> bool:
    """Return whether `path` is not a folder and has a file extension: `out.mp4` has one, `out.v2` has none.

    An extension starts with a letter and consists of ASCII letters, at least two of them, and digits.
    """
    suffix = path.suffix[1:]
    letters = sum(character.isalpha() for character in suffix)
    return not path.is_dir() and suffix.isascii() and suffix.isalnum() and suffix[:1].isalpha() and letters > 1


def pluralize(number: int, noun: str) -> str:
    """Return a number with its noun: "1 channel", "2 channels", "1,000 pictures"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def join_first(names: Sequence[str], count: int, *, separator: str = ", ") -> str:
    """Return the first `count` of `names`, and how many more there are, as text: "a, b and 3 more"."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return separator.join(names[:count]) + more


def format_duration(seconds: float) -> str:
    """Return `seconds` as text: "8 s", "3 min 20 s", "2 h 05 min"."""
    rounded = max(0, round(seconds))
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02d} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02d} min"


def format_brief_duration(seconds: float) -> str:
    """Return `seconds` as text with three significant digits: "1.25 s", "34.5 ms", "870 µs"."""
    value, unit = 1e6 * seconds, "µs"
    for larger in ("ms", "s"):
        if value >= 999.5:
            value, unit = value / 1000, larger
    return f"{value:,.0f} {unit}" if value >= 999.5 else f"{value:.3g} {unit}"


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def install_hint(extra: str) -> str:
    """Return the instruction to install an extra of `pyproject.toml`, from a clone, as velogan is not on PyPI."""
    return f"in your clone of velogan, pip install -e '.[{extra}]'"


def require(extra: str, *modules: str, feature: str) -> None:
    """Raise ValueError, with the command that installs `extra`, if `feature` lacks one of the `modules` it needs."""
    if missing := [name for name in modules if find_spec(name) is None]:
        raise ValueError(f"{feature} needs {', '.join(missing)}: {install_hint(extra)}")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return `; did you mean x?` with the most similar of `names`, or an empty string if none is similar."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def check_writable(flag: str, folder: Path) -> None:
    """Raise ValueError if `folder`, which need not exist yet, is not writable; the message starts with `flag`."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        TemporaryDirectory(prefix=".velogan-", dir=existing).cleanup()
    except OSError as error:
        raise ValueError(
            f"{flag} {folder}: nothing can be written to {existing} ({error.strerror}): choose another folder"
        ) from None
