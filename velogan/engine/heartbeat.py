"""Signs of life between the processes of one run, so that a wait for a lost one ends with its name.

The timeout of torch's process group does not replace it: it ends the ranks that wait while the first one validates for
longer, and its messages name no rank.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch.distributed import Store

PERIOD_S = 0.5
"""How often a process gives a sign of life."""

QUIET_S = 3.0
"""When an exchange fails, who gives no sign for so long is named as the lost one."""

GO_ON = "the last checkpoint is kept, and the same command goes on from it"
"""What a user can do then."""

_T = TypeVar("_T")

_ANSWER_S = 5.0
"""How long a failing process waits to learn whether another one has told already."""


class Heartbeat:
    """Counts up in the rendezvous' `store`, and monitors that the next rank does so and that the store answers.

    A collective may block for hours while rank 0 validates; the heartbeat tells a slow peer from a dead one. After
    `process_timeout` seconds without a sign it calls `lost` with a sentence. By default that ends this process, because
    a blocked collective cannot be interrupted. Its threads only wait for the network.
    """

    def __init__(
        self,
        store: Store,
        *,
        rank: int,
        world: int,
        where: str,
        address: str,
        process_timeout: float,
        lost: Callable[[str], None] | None = None,
    ):
        self.rank, self.world, self.address, self.process_timeout = rank, world, address, process_timeout
        # a call that hangs blocks its own connection only
        self._beats, self._tells = store.clone(), store.clone()  # pyright: ignore[reportAttributeAccessIssue]
        self._lost = lost or self._end
        self._next, self._names = (rank + 1) % world, {rank: where}
        self._tells.set(f"velogan/where/{rank}", where)
        self._closed = threading.Event()
        self._answered = self._seen = time.monotonic()
        self._threads = [
            threading.Thread(target=work, name="velogan-heartbeat", daemon=True) for work in (self._beat, self._watch)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop sending and monitoring heartbeats.

        A thread that returns from the store while Python ends would abort the process, with its work done. So both
        threads are waited for; one that gets no answer never returns.
        """
        self._closed.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_ANSWER_S)

    def claim_error_report(self) -> bool:
        """Return True for the first process that asks: only that one prints the reason why the run ends."""
        return self._call_with_timeout(lambda: self._tells.add("velogan/told", 1)) in (1, None)

    def unresponsive_ranks(self) -> str:
        """Name the processes that give no sign of life now; empty if all do."""
        before = self._call_with_timeout(self._counts)
        time.sleep(QUIET_S)
        after = self._call_with_timeout(self._counts)
        if before is None or after is None:
            return self._store_lost(_ANSWER_S)
        return " and ".join(self.describe(rank) for rank in range(self.world) if before[rank] == after[rank])

    def describe(self, rank: int) -> str:
        """Name a rank with its host and process if these are known."""
        if rank not in self._names:
            found = self._call_with_timeout(lambda: self._tells.get(f"velogan/where/{rank}").decode())
            self._names[rank] = found or "host unknown"
        return f"rank {rank} of {self.world} ({self._names[rank]})"

    def _counts(self) -> list[int]:
        return [self._tells.add(f"velogan/beat/{rank}", 0) for rank in range(self.world)]

    def _beat(self) -> None:
        before = -1
        while not self._closed.wait(PERIOD_S):
            try:
                self._beats.add(f"velogan/beat/{self.rank}", 1)
                count = self._beats.add(f"velogan/beat/{self._next}", 0)
            except RuntimeError:  # `_watch` sees that nothing answers
                continue
            now = time.monotonic()
            if count != before:
                before, self._seen = count, now
            self._answered = now

    def _watch(self) -> None:
        self.describe(self._next)  # while it can be asked
        while not self._closed.wait(PERIOD_S):
            now = time.monotonic()
            if now - self._answered > self.process_timeout:
                self._lost(self._store_lost(now - self._answered))
            # while nothing answers nobody knows whether the next rank lives: only time with answers counts against it
            elif (silent := self._answered - self._seen) > self.process_timeout:
                self._lost(f"no sign of life from {self.describe(self._next)} for {silent:.0f} s")

    def _store_lost(self, seconds: float) -> str:
        return f"no answer from the rendezvous at {self.address} for {seconds:.0f} s: its host, or the link, is lost"

    def _end(self, text: str) -> None:
        if self._closed.is_set():
            return
        if self.claim_error_report():
            print(f"velogan: {self.describe(self.rank)}: {text}; {GO_ON}", file=sys.stderr, flush=True)
        os._exit(1)

    def _call_with_timeout(self, question: Callable[[], _T]) -> _T | None:
        """Return the store's answer; None if it gives none soon."""
        answers: list[_T] = []

        def ask() -> None:
            try:
                answers.append(question())
            except RuntimeError:
                return

        thread = threading.Thread(target=ask, name="velogan-ask", daemon=True)
        thread.start()
        thread.join(_ANSWER_S)
        return answers[0] if answers else None
