"""Live progress on the terminal, or plain lines without a terminal. Everything goes to standard error."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from velogan.files import format_duration, pluralize

PLAIN_INTERVAL_S = 30.0


class _StandardError:
    """Standard error, whose output is discarded once writing fails, so that a run survives a closed terminal."""

    @property
    def _stream(self) -> Any:
        return getattr(sys.stderr, "rich_proxied_file", sys.stderr)  # rich replaces it while bars are drawn

    def write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        if name == "rich_proxied_file":  # else rich would write past this object
            raise AttributeError(name)
        return getattr(self._stream, name)


class Display:
    """Progress bars for the phases of a command; use it as a context manager.

    If standard error is not a terminal, a phase prints a plain line every 30 seconds and one when it is done.
    `quiet`: print nothing. `console` and `now` (seconds) are for tests.
    """

    def __init__(
        self, *, quiet: bool = False, console: Console | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console(file=cast(IO[str], _StandardError()), quiet=quiet)
        self._now = now
        self._bars = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[detail]}", markup=False),
            console=self._console,
            # else what is printed to standard output would go to standard error
            redirect_stdout=False,
            disable=quiet or not self._console.is_terminal,
        )

    def __enter__(self) -> Display:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def print_line(self, text: str) -> None:
        """Print one line above the bars. Control characters, for example of file names, are escaped."""
        self._console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def task(self, name: str) -> Callable[[int, int], None]:
        """Return a function that updates a bar called `name`; call it with `(done, total)`, from one thread."""
        bar = _Bar(self, name)
        return lambda done, total: bar.show(done, total, f"{done:,}/{total:,}")

    def count(self, name: str) -> Callable[[int], None]:
        """Return a function that updates a bar without a known total; call it with the number done."""
        bar = _Bar(self, name)
        return lambda done: bar.show(done, 0, f"{done:,}")

    def training(self, total_images: int | None) -> TrainingBar:
        """Return the training bar. `total_images`: None in a run limited by time; the ETA then gives an estimate."""
        return TrainingBar(_Bar(self, "training"), total_images)


class TrainingBar:
    """The training bar; created by `Display.training`."""

    def __init__(self, bar: _Bar, total_images: int | None) -> None:
        self._bar = bar
        self._total = total_images

    def update(self, images: int, *, images_per_s: float, eta_s: float | None, losses: Mapping[str, float]) -> None:
        """Show the number of `images` seen, the speed, the seconds left (None: unknown) and losses by short name."""
        total = self._total
        if total is None:
            total = images + round(images_per_s * eta_s) if eta_s is not None else 0
        parts = [
            f"{images:,}/{pluralize(total, 'image')}" if total else pluralize(images, "image"),
            f"{images_per_s:.1f}/s",
        ]
        if eta_s is not None:
            parts.append(f"{format_duration(eta_s)} left")
        parts += [f"{name} {value:.3f}" for name, value in losses.items()]
        self._bar.show(images, total, " · ".join(parts))


class _Bar:
    """A progress bar, or plain lines if there is no terminal."""

    def __init__(self, display: Display, name: str) -> None:
        self._display = display
        self._name = name
        self._task: TaskID | None = None
        self._printed = display._now()

    def show(self, done: int, total: int, detail: str) -> None:
        display = self._display
        if display._console.is_terminal:
            if self._task is None:
                self._task = display._bars.add_task(self._name, total=total or None, detail=detail)
            display._bars.update(self._task, completed=done, total=total or None, detail=detail)
        elif done == total or display._now() - self._printed >= PLAIN_INTERVAL_S:
            self._printed = display._now()
            display.print_line(f"{self._name}: {detail}")


_RESULTS = (  # number of images seen, and what runs with fewer achieve (benchmarks/RECORDS.md)
    (2_000, "so few show that all parts work; do not expect good pictures"),
    (10_000, "3,000 made the built-in apples into oranges; real photographs need more"),
    (100_000, "17,000 with the preset fast made about half of 120 horses into zebras"),
)
_LONGER_RESULT = "the papers train for 200 epochs: 267,000 images of horse2zebra"


def forecast(images: int, *, images_per_s: float, total: int | None, left_s: float | None) -> str:
    """Return one line about what to expect of a run: speed, length, end, and the results of runs of this length.

    `images`: number seen so far; `left_s`: seconds until the end, None if unknown.
    """
    expected = total or (images + round(images_per_s * left_s) if left_s else images)
    now = datetime.now()
    at = now + timedelta(seconds=left_s or 0)
    day = "" if at.date() == now.date() else f"{at:%Y-%m-%d} "
    end = f", until {day}{at:%H:%M}" if left_s else ""
    result = next((text for limit, text in _RESULTS if expected < limit), _LONGER_RESULT)
    return f"this machine sees {images_per_s:.3g} images/s, the run about {expected:,}{end}: {result}"


def printable(text: str) -> str:
    r"""Return `text` as one line that is safe for a terminal: unprintable characters become escapes like \n."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
