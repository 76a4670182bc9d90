"""Heartbeats between the ranks of one run: if a rank is lost, the others end with a message that names it.

The timeout of torch's process group would also end ranks that wait while rank 0 validates, and its messages do not
name the lost rank.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch.distributed import Store

PERIOD_S = 0.5
"""Interval of heartbeats, in seconds."""

SILENCE_S = 3.0
"""After failed communication, ranks that send no heartbeat for this many seconds are reported as lost."""

RESUME_HINT = "the same command resumes from the last checkpoint, if there is one"

_T = TypeVar("_T")

_STORE_TIMEOUT_S = 5.0
"""Maximum duration of a call to the store, in seconds."""


class Heartbeat:
    """Increments a counter in the rendezvous' `store`, and monitors the next rank's counter.

    A collective may block for hours while rank 0 validates; heartbeats distinguish a slow rank from a lost one. After
    `process_timeout` seconds without a heartbeat, or without an answer of the store, this process ends, because a
    blocked collective cannot be interrupted.

    locations: host and process of each rank, for messages
    address: address of the rendezvous, for messages
    """

    def __init__(self, store: Store, *, rank: int, locations: Sequence[str], address: str, process_timeout: float):
        self.rank, self.locations = rank, locations
        self.address, self.process_timeout = address, process_timeout
        # a call that hangs blocks only its own connection
        self._counters, self._messages = store.clone(), store.clone()  # pyright: ignore[reportAttributeAccessIssue]
        self._next_rank = (rank + 1) % len(locations)
        self._closed = threading.Event()
        self._last_answer = self._last_beat = time.monotonic()  # of the store; of the next rank
        self._threads = [
            threading.Thread(target=loop, name="velogan-heartbeat", daemon=True) for loop in (self._beat, self._watch)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop sending and monitoring heartbeats.

        Waits up to `_STORE_TIMEOUT_S` for each thread, since a call to the store that returns while Python exits would
        abort the process.
        """
        self._closed.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_STORE_TIMEOUT_S)

    def claim_error_report(self) -> bool:
        """Return whether this rank must print why the run ends: it is the first to claim it, or the store is lost."""
        return self._call_with_timeout(lambda: self._messages.add("velogan/reported", 1)) in (1, None)

    def unresponsive_ranks(self) -> str:
        """Return a description of ranks that send no heartbeat, or of the lost store; empty if all send heartbeats."""
        before = self._call_with_timeout(self._read_counters)
        time.sleep(SILENCE_S)
        after = self._call_with_timeout(self._read_counters)
        if before is None or after is None:
            return self._describe_lost_store(_STORE_TIMEOUT_S)
        return " and ".join(self.describe(rank) for rank in range(len(self.locations)) if before[rank] == after[rank])

    def describe(self, rank: int) -> str:
        """Return the name of a rank, with its host and process."""
        return f"rank {rank} of {len(self.locations)} ({self.locations[rank]})"

    def _read_counters(self) -> list[int]:
        return [self._messages.add(f"velogan/beat/{rank}", 0) for rank in range(len(self.locations))]

    def _beat(self) -> None:
        previous_count = -1
        while not self._closed.wait(PERIOD_S):
            try:
                self._counters.add(f"velogan/beat/{self.rank}", 1)
                count = self._counters.add(f"velogan/beat/{self._next_rank}", 0)
            except RuntimeError:  # `_watch` notices that nothing answers
                continue
            now = time.monotonic()
            if count != previous_count:
                previous_count, self._last_beat = count, now
            self._last_answer = now

    def _watch(self) -> None:
        while not self._closed.wait(PERIOD_S):
            now = time.monotonic()
            if now - self._last_answer > self.process_timeout:
                self._end_process(self._describe_lost_store(now - self._last_answer))
            # without answers the next rank may well be alive: only time with answers counts against it
            elif (silence := self._last_answer - self._last_beat) > self.process_timeout:
                self._end_process(f"no heartbeat from {self.describe(self._next_rank)} for {silence:.0f} s")

    def _describe_lost_store(self, seconds: float) -> str:
        return f"no answer from the rendezvous at {self.address} for {seconds:.0f} s: its host or the link is lost"

    def _end_process(self, message: str) -> None:
        if self._closed.is_set():
            return
        if self.claim_error_report():
            print(f"velogan: {self.describe(self.rank)}: {message}; {RESUME_HINT}", file=sys.stderr, flush=True)
        os._exit(1)

    def _call_with_timeout(self, request: Callable[[], _T]) -> _T | None:
        """Return the result of `request` to the store; None if it fails or takes too long."""
        results: list[_T] = []

        def call() -> None:
            with suppress(RuntimeError):
                results.append(request())

        thread = threading.Thread(target=call, name="velogan-store", daemon=True)
        thread.start()
        thread.join(_STORE_TIMEOUT_S)
        return results[0] if results else None
