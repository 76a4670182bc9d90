"""Work on images in threads: results in order, with a bounded number of images in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future
from threading import Condition
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_MAX_WAITING = 3 * 2**26
"""While results that nobody has taken hold more bytes than this, no further image is begun."""


def ordered_map(
    pool: Executor, function: Callable[[Item], Result], items: Iterable[Item], *, ahead: int
) -> Generator[tuple[Item, Result], None, None]:
    """Yield each item with `function(item)`, in order, while the pool's threads work on up to `ahead` of the next.

    Memory holds `_MAX_WAITING` bytes of results and one image of any size for each thread. `pool` must have no other
    work meanwhile.
    """
    changed = Condition()
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    held: dict[int, int] = {}  # bytes of results by the number of the item
    due = 0  # the number of the item that is returned next, which never waits
    closed = False

    def work(number: int, item: Item) -> Result:
        with changed:
            changed.wait_for(lambda: closed or number <= due or sum(held.values()) <= _MAX_WAITING)
            if closed:
                raise RuntimeError("the results are no longer wanted")
        result = function(item)
        with changed:
            held[number] = getattr(result, "nbytes", 0)
        return result

    def first() -> tuple[Item, Result]:
        nonlocal due
        item, future = waiting.popleft()
        result = future.result()
        with changed:
            held.pop(due, None)
            due += 1
            changed.notify_all()
        return item, result

    try:
        for number, item in enumerate(items):
            waiting.append((item, pool.submit(work, number, item)))
            if len(waiting) > ahead:
                yield first()
        while waiting:
            yield first()
    finally:
        with changed:
            closed = True
            changed.notify_all()
        for _, future in waiting:
            future.cancel()
