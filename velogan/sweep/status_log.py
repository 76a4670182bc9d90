"""What a sweep says on standard error: a line when the status of a trial changes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console

from velogan.observe.progress import printable
from velogan.sweep.folder import TrialState

EVERY_S = 2.0


class StatusLog:
    """Prints a line when the status of a trial changes. `quiet` prints nothing but `say`."""

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        self._console, self._quiet = console or Console(stderr=True), quiet
        self._next = 0.0
        self._told: dict[str, str] = {}

    def say(self, text: str) -> None:
        """Print one line."""
        self._console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def due(self) -> bool:
        """Whether it is time to look again: reading all logs takes a moment."""
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + EVERY_S
        return True

    def show(self, rows: Sequence[tuple[str, TrialState]]) -> None:
        """Print a line for each trial whose status is another."""
        if self._quiet:
            return
        for name, state in rows:
            if state.status not in ("waiting", self._told.get(name)):
                self._told[name] = state.status
                score = "" if state.score is None else f", score {state.score:.4g}"
                self.say(f"{name}: {state.status}{score}{f' ({state.reason})' if state.reason else ''}")
