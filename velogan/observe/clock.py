"""The time of a run, continued after restarts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Clock:
    """Measures the seconds of a run by a monotonic clock, so that changes of the wall clock do not matter.

    It does not run before `start`. `seconds` is the total time; `training_seconds` excludes `overhead`.
    `now`: returns seconds that never decrease.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._before = self._overhead = 0.0
        self._since: float | None = None
        self._tick: tuple[int, float] | None = None
        self._seconds_per_image = 0.0

    @property
    def seconds(self) -> float:
        """Seconds so far, including earlier processes of the same run."""
        return self._before + (0.0 if self._since is None else self._now() - self._since)

    @property
    def training_seconds(self) -> float:
        """Seconds so far without the overhead of this process; only differences are meaningful, not the total."""
        return self.seconds - self._overhead

    def start(self, *, elapsed: float = 0.0) -> None:
        """Start the clock at `elapsed` seconds; no effect if it is running."""
        if self._since is None:
            self._since = self._now() - elapsed

    def stop(self) -> None:
        """Stop the clock; no effect if it is stopped."""
        self._before, self._since = self.seconds, None

    @contextmanager
    def overhead(self) -> Iterator[None]:
        """Exclude the time in this context, for example of saving a checkpoint, from `training_seconds`."""
        started = self.seconds
        try:
            yield
        finally:
            self._overhead += self.seconds - started

    def tick(self, images: int) -> float:
        """Return images per second since the last call; 0 at the first. `images`: number seen by the run so far."""
        seconds = self.training_seconds
        images_before, seconds_before = self._tick or (images, seconds)
        self._tick = (images, seconds)
        done, elapsed = images - images_before, seconds - seconds_before
        if done <= 0 or elapsed <= 0:
            return 0.0
        # ETA moves half-way to the new speed, so that one slow interval does not make it jump
        self._seconds_per_image = (elapsed / done + (self._seconds_per_image or elapsed / done)) / 2
        return done / elapsed

    def eta(self, images_left: int) -> float | None:
        """Return the seconds that `images_left` images will take at the recent speed; None while it is unknown."""
        return images_left * self._seconds_per_image if self._seconds_per_image else None

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints: `{"seconds": float}`."""
        return {"seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the seconds of `state_dict`; a running clock keeps running.

        Raises ValueError if they are negative or not finite.
        """
        seconds = float(state["seconds"])
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"seconds={seconds} of training must be a finite number from 0 on")
        was_running = self._since is not None
        self.stop()
        self._before, self._tick = seconds, None
        if was_running:
            self.start()
