"""The log of a run: `stats.jsonl` contains all metrics; TensorBoard gets a copy."""

from __future__ import annotations

import io
import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

_LOGGER = logging.getLogger(__name__)


class Log:
    """Appends to the log of the folder `run`, which is created if it is missing.

    Call `truncate` first if there is a log already, since its last line may be incomplete. With `tensorboard` the same
    metrics, and image grids, go to `run/tensorboard`; if that fails, it is reported once by `print_line` and disabled.
    Raises OSError if a line cannot be written to `stats.jsonl`; earlier lines are preserved.
    """

    def __init__(
        self, run: Path, *, tensorboard: bool = True, print_line: Callable[[str], None] = _LOGGER.warning
    ) -> None:
        self._run, self._print_line = Path(run), print_line
        self._run.mkdir(parents=True, exist_ok=True)
        self._tensorboard = tensorboard
        self._board: _Board | None = None
        self._purge: int | None = None
        self._file = io.FileIO(self._run / "stats.jsonl", "a")

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row: "images" (number seen so far) and metrics by name. Values that are not finite become null."""
        row = {name: _finite_or_none(value) for name, value in row.items()}
        self._append(json.dumps(row, allow_nan=False).encode() + b"\n")
        scalars = {name: value for name, value in row.items() if name != "images" and isinstance(value, int | float)}
        self._mirror(lambda board: board.scalars(scalars, images=row["images"]))

    def image(self, name: str, grid: np.ndarray, *, images: int) -> None:
        """Write `grid`, `(H, W, 3)` uint8, to TensorBoard at `images` seen."""
        self._mirror(lambda board: board.image(name, grid, images=images))

    def truncate(self, images: int) -> None:
        """Remove rows after `images` seen, which a resumed run writes again, and an incomplete last line.

        The file is truncated in place, which needs no free disk space.
        """
        end = position = 0
        with (self._run / "stats.jsonl").open("rb") as file:
            for line in file:
                position += len(line)
                row = _parse(line)
                if row is not None and row.get("images", 0) <= images and line.endswith(b"\n"):
                    end = position
        os.truncate(self._file.fileno(), end)
        self._close_board()
        self._purge = images + 1

    def close(self) -> None:
        """Close the files of the log."""
        self._file.close()
        self._close_board()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, line: bytes) -> None:
        end = os.fstat(self._file.fileno()).st_size
        try:
            while line:
                line = line[self._file.write(line) :]  # a nearly full disk takes only a part
        except OSError as error:
            os.truncate(self._file.fileno(), end)
            text = (
                f"{error.strerror} while logging: make room, or make it writable, and the same command goes on from "
                "the last checkpoint"
            )
            raise OSError(error.errno, text, str(self._run / "stats.jsonl")) from error

    def _mirror(self, show: Callable[[_Board], None]) -> None:
        if not self._tensorboard:
            return
        try:
            self._board = self._board or _Board(self._run / "tensorboard", purge=self._purge)
            show(self._board)
        except OSError as error:
            self._tensorboard = False
            self._print_line(
                f"{self._run / 'tensorboard'} cannot be written ({error.strerror}): metrics are only written to "
                "stats.jsonl from now on"
            )
            self._close_board()

    def _close_board(self) -> None:
        if self._board is not None:
            with suppress(OSError):
                self._board.close()
            self._board = None


class _Board:
    """An event file in `folder` for TensorBoard, whose methods raise OSError if they cannot write.

    torch's SummaryWriter writes in a thread, so that its errors may come late or never. `purge`: number of images from
    which TensorBoard ignores the content of earlier files.
    """

    def __init__(self, folder: Path, *, purge: int | None) -> None:
        # importing takes two seconds, too much for `--help` and short commands
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.summary.writer.record_writer import RecordWriter
        from torch.utils.tensorboard import summary

        self._event, self._summary = Event, summary
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / _event_file_name(folder)).open("ab")
        self._records = RecordWriter(self._file)
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if purge is not None:
            self._write(Event(wall_time=time.time(), step=purge, session_log=SessionLog(status=SessionLog.START)))

    def scalars(self, values: Mapping[str, float], *, images: int) -> None:
        for name, value in values.items():
            self._add(self._summary.scalar(name, value), images)
        self._file.flush()

    def image(self, name: str, grid: np.ndarray, *, images: int) -> None:
        self._add(self._summary.image(name, grid, dataformats="HWC"), images)
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _add(self, summary: Any, images: int) -> None:
        self._write(self._event(wall_time=time.time(), step=images, summary=summary))

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())


def _event_file_name(folder: Path) -> str:
    """Return a file name, usually the time, that sorts after those in `folder`: TensorBoard reads in this order."""
    earlier = (re.match(r"events\.out\.tfevents\.(\d+)", path.name) for path in folder.iterdir())
    last = max((int(found[1]) for found in earlier if found), default=0)
    return f"events.out.tfevents.{max(int(time.time()), last + 1):010d}.velogan"


def read_stats(run: Path) -> list[dict[str, Any]]:
    """Read the rows of the log of `run`, oldest first, without damaged lines; empty if there is no file."""
    try:
        lines = (Path(run) / "stats.jsonl").read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return [row for row in map(_parse, lines) if row is not None]


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
