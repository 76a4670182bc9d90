"""Files and texts that every room writes and reads the same way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives the path of a new file beside `path`; what is written there takes the place of `path` at the end.

    Readers see the old or the new content, never a part. OSError names `path`.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield aside
        with open(aside, "rb") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException as error:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_text(path: Path, text: str) -> None:
    """Writes a file as `replacing` does; what is not Unicode in `text` becomes `?`. OSError says what to do."""
    try:
        with replacing(path) as aside:
            aside.write_bytes(text.encode("utf-8", errors="replace"))
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


def duration(seconds: float) -> str:
    """`seconds` for people: "8 s", "3 min 20 s", "2 h 05 min"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
