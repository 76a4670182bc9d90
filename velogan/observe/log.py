"""The log of a run: `stats.jsonl` is the one source, TensorBoard a mirror of it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Log:
    """Appends to the log of the folder `run`, which is made if it is missing.

    A last line torn by a kill is dropped on opening. With `tensorboard` the same figures, and image grids,
    go to `run/tensorboard`.
    """

    def __init__(self, run: Path, *, tensorboard: bool = True) -> None:
        self._run = Path(run)
        self._run.mkdir(parents=True, exist_ok=True)
        self._tensorboard = tensorboard
        self._writer: SummaryWriter | None = None
        self._purge: int | None = None
        self._file = _open_whole(self._run / "stats.jsonl")

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one tick. `row` holds "images" (images seen) and figures by name.

        A figure that is not finite becomes null.
        """
        if "images" not in row:
            raise ValueError(f'a row of the log needs "images", got {sorted(row)}: add the number of images seen')
        row = {name: _finite(value) for name, value in row.items()}
        self._file.write(json.dumps(row, allow_nan=False) + "\n")
        if self._tensorboard:
            for name, value in row.items():
                if name != "images" and isinstance(value, int | float):
                    self._board().add_scalar(name, value, row["images"])

    def image(self, name: str, grid: np.ndarray, *, images: int) -> None:
        """Show `grid`, `(H, W, 3)` uint8, in TensorBoard at `images` seen."""
        if self._tensorboard:
            self._board().add_image(name, grid, images, dataformats="HWC")

    def truncate(self, images: int) -> None:
        """Forget what was logged beyond `images` seen, so that a resumed run has no doubled history."""
        path = self._run / "stats.jsonl"
        kept = [row for row in read_stats(self._run) if row.get("images", 0) <= images]
        self._file.close()
        whole = path.with_name("stats.jsonl.tmp")
        whole.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        os.replace(whole, path)
        self._file = _open_whole(path)
        self._close_board()
        self._purge = images + 1

    def close(self) -> None:
        """Write out what is buffered; the log takes no more."""
        self._file.close()
        self._close_board()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _board(self) -> SummaryWriter:
        if self._writer is None:
            # costs two seconds of import, which `--help` and short commands should not pay
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._run / "tensorboard"), purge_step=self._purge)
        return self._writer

    def _close_board(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def read_stats(run: Path) -> list[dict[str, Any]]:
    """The ticks of the folder `run`, oldest first; lines torn by a kill are left out, no file is no ticks."""
    try:
        lines = (Path(run) / "stats.jsonl").read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _open_whole(path: Path) -> IO[str]:
    """Open for appending whole lines, without the torn last one."""
    if path.exists():
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)
    return path.open("a", encoding="utf-8", buffering=1)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
