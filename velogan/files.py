"""Files and texts that every room writes and reads the same way."""

from __future__ import annotations

import difflib
import hashlib
import os
import shlex
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Gives the path of a new file beside `path`; what is written there takes the place of `path` at the end.

    Readers see the old or the new content, never a part. OSError names `path`.
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


def private_folder(folder: Path) -> Path:
    """Make a folder for code that is run later, with mode 0700, and give it; its parent is made likewise.

    ValueError, which names the folder and the mend, where other users than root may write to it, or may replace it
    because they may write to its parent.
    """
    for one in (folder.parent, folder):
        if not one.exists():
            one.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not folder.parent.stat().st_mode & stat.S_ISVTX:  # in a folder like /tmp nobody replaces what is another's
        check_not_shared(folder.parent)
    check_not_shared(folder)
    return folder


def check_not_shared(path: Path) -> None:
    """ValueError where other users than root may write to `path`, from which code is loaded."""
    facts = path.stat()
    if facts.st_uid not in (os.getuid(), 0):
        raise ValueError(
            f"{path} belongs to another user, who could put any code there for this program to run: set the "
            "environment variable VELOGAN_CACHE to a folder of your own"
        )
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ValueError(
            f"other users may write to {path} and so put any code there for this program to run: if nobody has, "
            f"`chmod go-w {shlex.quote(str(path))}`; or set the environment variable VELOGAN_CACHE to another folder"
        )


def write_text(path: Path, text: str) -> None:
    """Writes a file as `replacing` does; what is not Unicode in `text` becomes `?`. OSError says what to do."""
    try:
        with atomic_write(path) as tmp_path:
            tmp_path.write_bytes(text.encode("utf-8", errors="replace"))
    except OSError as error:
        mend = f"{error.strerror} while writing this file: make room, or make it writable, and start again"
        raise OSError(error.errno, mend, str(path)) from error


def parse_yaml(text: str) -> Any:
    """Plain values from YAML. ValueError where `text` is none, or is nested too deeply, or holds an alias."""
    try:
        return yaml.load(text, _PlainValues)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


class _PlainValues(yaml.SafeLoader):
    """No objects, and no aliases, with which a few lines can stand for gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not taken; write the value itself")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        lines: dict[Any, int] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            here = key.start_mark.line + 1
            if (before := lines.setdefault(key.value, here)) != here:
                raise yaml.YAMLError(f"{key.value} is there twice, in lines {before} and {here}: leave one of them")
        return super().construct_mapping(node, deep)


def looks_like_file_name(path: Path) -> bool:
    """Whether a path that is no folder is named as files are: with a letter behind its last dot, and another.

    Letters and digits alone: `out.geotiffs` and `out.mp4` are named so, `out.v2` and `results.2026` are not.
    """
    suffix = path.suffix[1:]
    letters = sum(character.isalpha() for character in suffix)
    return not path.is_dir() and suffix.isascii() and suffix.isalnum() and suffix[:1].isalpha() and letters > 1


def pluralize(number: int, what: str) -> str:
    """`number` things for people: "1 channel", "2 channels", "1,000 pictures"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """`seconds` for people: "8 s", "3 min 20 s", "2 h 05 min"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def brief_duration(seconds: float) -> str:
    """Return `seconds` with three digits: "1.25 s", "34.5 ms", "870 µs"."""
    value, unit = 1e6 * seconds, "µs"
    for larger in ("ms", "s"):
        if value >= 999.5:
            value, unit = value / 1000, larger
    return f"{value:,.0f} {unit}" if value >= 999.5 else f"{value:.3g} {unit}"


def sha256(file: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def install(extra: str) -> str:
    """The command that installs an optional extra of `pyproject.toml`. velogan is in no registry, only in a clone."""
    return f"in your clone of velogan, pip install -e '.[{extra}]'"


def require(extra: str, *modules: str, user: str) -> None:
    """Raises ValueError, which says how to install `extra`, where one of its `modules` is missing; `user` needs it."""
    if missing := [name for name in modules if find_spec(name) is None]:
        raise ValueError(f"{user} needs {', '.join(missing)}: {install(extra)}")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`; did you mean x?` for the valid name closest to `name`, or nothing."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def check_writable(flag: str, folder: Path) -> None:
    """ValueError where nothing can be written into a folder, which need not exist yet."""
    above = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    try:
        TemporaryDirectory(prefix=".velogan-", dir=above).cleanup()
    except OSError as error:
        raise ValueError(
            f"{flag} {folder}: nothing can be written to {above} ({error.strerror}): name another folder"
        ) from None
