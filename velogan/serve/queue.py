"""The queue of requests: a bounded number of them, whose work one thread does in the order of arrival."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from velogan.serve.limits import Refusal

Result = TypeVar("Result")

_AFTER = 5  # seconds after which a refused client may come again


class _Abandoned(Exception):
    """Nobody waits for this result any more."""


class Queue:
    """Admits `most` requests at once, and does their work one after another in a thread of its own."""

    def __init__(self, *, most: int):
        self._most, self._closed = most, False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="translate")
        self.inside = 0
        """The number of requests that were admitted and are not answered."""

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Counts a request while it is served. Raises `Refusal` where too many are inside already."""
        if self._closed:
            raise _stopping()
        if self.inside >= self._most:
            raise Refusal(503, "busy", f"{self.inside} pictures are waiting already: try again soon", after=_AFTER)
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    async def run(self, work: Callable[[Callable[[], None]], Result], *, seconds: float) -> Result:
        """The result of `work`, computed in the queue's thread within `seconds`, waiting included.

        `work` takes a function to call now and then: it raises once nobody waits for the result any more. Cancelling
        this call takes the work out of the queue, or ends it at the next such call. Raises `Refusal`.
        """
        if self._closed:
            raise _stopping()
        began, abandoned = threading.Event(), threading.Event()

        def go_on() -> None:
            if abandoned.is_set():
                raise _Abandoned

        def started() -> Result:
            began.set()
            go_on()
            return work(go_on)

        future = self._thread.submit(started)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            if began.is_set():
                message = f"the translation took more than {seconds:g} s: send a smaller picture"
                raise Refusal(504, "too_slow", message) from None
            raise Refusal(503, "busy", f"no turn within {seconds:g} s: try again", after=_AFTER) from None
        except asyncio.CancelledError:
            if self._closed and not began.is_set():
                raise _stopping() from None
            raise
        finally:
            abandoned.set()

    def close(self, *, wait: bool = False) -> None:
        """Admits nobody any more and refuses all that wait; work that has begun is finished. `wait`: until it is."""
        self._closed = True
        self._thread.shutdown(wait=wait, cancel_futures=True)


def _stopping() -> Refusal:
    return Refusal(503, "stopping", "the server is stopping", after=10)
