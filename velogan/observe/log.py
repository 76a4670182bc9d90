"""The log of a run: `stats.jsonl` contains all metrics; TensorBoard, W&B or MLflow gets a copy."""

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
from typing import Any, Protocol

import numpy as np

from velogan.files import require, write_text

_LOGGER = logging.getLogger(__name__)


class Log:
    """Appends to the log of the folder `run`, which is created if it is missing.

    Call `truncate` first if there is a log already, since its last line may be incomplete. The same metrics, and image
    grids, go to `logger`, a key of `LOGGERS` or "none"; it is closed if it fails, which `print_line` reports once.
    Raises OSError if a line cannot be written to `stats.jsonl`; earlier lines are preserved. Raises ValueError if the
    package of `logger` is not installed.
    """

    def __init__(
        self, run: Path, *, logger: str = "tensorboard", print_line: Callable[[str], None] = _LOGGER.warning
    ) -> None:
        if logger in ("wandb", "mlflow"):
            require(logger, logger, feature=f"train.logger={logger}")
        self._run, self._print_line = Path(run), print_line
        self._run.mkdir(parents=True, exist_ok=True)
        self._logger = logger
        self._metrics_logger: MetricsLogger | None = None
        self._purge_step: int | None = None
        self._file = io.FileIO(self._run / "stats.jsonl", "a")

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row: "images" (number seen so far) and metrics by name. Values that are not finite become null."""
        not_finite = {name for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)}
        row = {**row, **dict.fromkeys(not_finite)}
        self._append(json.dumps(row, allow_nan=False).encode() + b"\n")
        scalars = {name: value for name, value in row.items() if name != "images" and isinstance(value, int | float)}
        self._mirror(lambda logger: logger.scalars(scalars, images=row["images"]))

    def image(self, name: str, grid: np.ndarray, *, images: int) -> None:
        """Send `grid`, `(H, W, 3)` uint8, to the logger as `name`; `images`: number seen so far."""
        self._mirror(lambda logger: logger.image(name, grid, images=images))

    def truncate(self, images: int) -> None:
        """Remove the rows after `images` images seen, which a resumed run writes again, and an incomplete last line.

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
        self._close_metrics_logger()
        self._purge_step = images + 1

    def close(self) -> None:
        """Close the files of the log."""
        self._file.close()
        self._close_metrics_logger()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, line: bytes) -> None:
        end = os.fstat(self._file.fileno()).st_size
        try:
            while line:
                line = line[self._file.write(line) :]  # a nearly full disk accepts only a part of it
        except OSError as error:
            os.truncate(self._file.fileno(), end)
            text = (
                f"{error.strerror} while logging: make room, or make it writable, and the same command goes on from "
                "the last checkpoint"
            )
            raise OSError(error.errno, text, str(self._run / "stats.jsonl")) from error

    def _mirror(self, write: Callable[[MetricsLogger], None]) -> None:
        if self._logger == "none":
            return
        try:
            self._metrics_logger = self._metrics_logger or LOGGERS[self._logger](self._run, self._purge_step)
            write(self._metrics_logger)
        except Exception as error:  # any error of a client: training must not depend on it
            message = error.strerror if isinstance(error, OSError) and error.strerror else error
            self._print_line(
                f"{self._logger} cannot be written ({message}): metrics are only written to stats.jsonl from now on"
            )
            self._logger = "none"
            self._close_metrics_logger()

    def _close_metrics_logger(self) -> None:
        if self._metrics_logger is not None:
            with suppress(Exception):
                self._metrics_logger.close()
            self._metrics_logger = None


class MetricsLogger(Protocol):
    """Receives a copy of the log."""

    def scalars(self, values: Mapping[str, float], *, images: int) -> None: ...
    def image(self, name: str, grid: np.ndarray, *, images: int) -> None: ...
    def close(self) -> None: ...


class TensorBoardLogger:
    """Writes an event file in `run/tensorboard`. Methods raise OSError if they cannot write.

    It does not use torch's SummaryWriter, whose thread reports errors late or never. TensorBoard ignores
    events of earlier files from the step `purge_step` (images seen) on.
    """

    def __init__(self, run: Path, purge_step: int | None) -> None:
        # importing takes two seconds, too much for `--help` and short commands
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.summary.writer.record_writer import RecordWriter
        from torch.utils.tensorboard import summary

        self._event, self._summary = Event, summary
        folder = run / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / _event_file_name(folder)).open("ab")
        self._records = RecordWriter(self._file)
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if purge_step is not None:
            self._write(Event(wall_time=time.time(), step=purge_step, session_log=SessionLog(status=SessionLog.START)))

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


class WandbLogger:
    """Logs to a run of Weights & Biases in the project WANDB_PROJECT (default: velogan). A resumed run continues it."""

    def __init__(self, run: Path, purge_step: int | None) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        self._image = wandb.Image
        id_file = run / "wandb.id"
        project, run_id = os.environ.get("WANDB_PROJECT", "velogan"), _read_id(id_file)
        self._run = wandb.init(project=project, name=run.name, id=run_id, dir=run, resume="allow")
        write_text(id_file, self._run.id)
        self._run.define_metric("*", step_metric="images")

    def scalars(self, values: Mapping[str, float], *, images: int) -> None:
        self._run.log({"images": images, **values})

    def image(self, name: str, grid: np.ndarray, *, images: int) -> None:
        self._run.log({"images": images, name: self._image(grid)})

    def close(self) -> None:
        self._run.finish()


class MlflowLogger:
    """Logs to a run of MLflow at MLFLOW_TRACKING_URI, in MLFLOW_EXPERIMENT_NAME. A resumed run continues it."""

    def __init__(self, run: Path, purge_step: int | None) -> None:
        import mlflow  # pyright: ignore[reportMissingImports]

        id_file = run / "mlflow.id"
        self._client = mlflow.MlflowClient()
        self._run_id = mlflow.start_run(run_id=_read_id(id_file), run_name=run.name).info.run_id
        write_text(id_file, self._run_id)
        self._mlflow = mlflow

    def scalars(self, values: Mapping[str, float], *, images: int) -> None:
        self._mlflow.log_metrics(dict(values), step=images, run_id=self._run_id)

    def image(self, name: str, grid: np.ndarray, *, images: int) -> None:
        self._client.log_image(self._run_id, grid, key=name.replace("/", "_"), step=images)

    def close(self) -> None:
        self._mlflow.end_run()


LOGGERS: dict[str, Callable[[Path, int | None], MetricsLogger]] = {
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
    "mlflow": MlflowLogger,
}
"""Loggers by value of `train.logger`. They take the run folder and `purge_step`; see `TensorBoardLogger`."""


def _read_id(file: Path) -> str | None:
    return file.read_text().strip() if file.is_file() else None


def _event_file_name(folder: Path) -> str:
    """Return a file name with a time that sorts after the files in `folder`, since TensorBoard reads them sorted."""
    earlier = (re.match(r"events\.out\.tfevents\.(\d+)", path.name) for path in folder.iterdir())
    last = max((int(match[1]) for match in earlier if match), default=0)
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
