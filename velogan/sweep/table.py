"""The live table of a sweep on standard error; plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table as Rows

from velogan.files import duration
from velogan.observe.progress import printable
from velogan.sweep.folder import TrialState

EVERY_S = 2.0


class Table:
    """Shows each trial's state; use it as a context manager. `quiet` says nothing at all but `say`."""

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        self._console, self._quiet = console or Console(stderr=True), quiet
        self._live = Live(console=self._console, auto_refresh=False)
        self._next = 0.0
        self._told: dict[str, str] = {}

    def __enter__(self) -> Table:
        if self._console.is_terminal and not self._quiet:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """One line above the table."""
        self._console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def due(self) -> bool:
        """Whether it is time to look again: reading all logs takes a moment."""
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + EVERY_S
        return True

    def show(self, rows: Sequence[tuple[str, TrialState]]) -> None:
        """Shows `rows` now; without a terminal, a line for each trial whose status is another."""
        if self._quiet:
            return
        if self._live.is_started:
            self._live.update(rendered(rows), refresh=True)
            return
        for name, state in rows:
            if state.status not in ("waiting", self._told.get(name)):
                self._told[name] = state.status
                score = "" if state.score is None else f", score {state.score:.4g}"
                self.say(f"{name}: {state.status}{score}{f' ({state.reason})' if state.reason else ''}")


def rendered(rows: Sequence[tuple[str, TrialState]]) -> Rows:
    """The table: trial, status, images, score, training time left."""
    table = Rows(box=None, pad_edge=False)
    for name, side in (("trial", "left"), ("", "left"), ("images", "right"), ("score", "right"), ("left", "right")):
        table.add_column(name, justify=side)  # pyright: ignore[reportArgumentType]
    for name, state in rows:
        score = "" if state.score is None else f"{state.score:.4g}"
        left = state.seconds * (100 - state.percent) / state.percent if state.percent else None
        remaining = duration(left) if state.status == "running" and left is not None else ""
        status = f"{state.status}: {state.reason}" if state.status == "failed" else state.status
        table.add_row(printable(name), printable(status), f"{state.images:,}", score, remaining)
    return table
