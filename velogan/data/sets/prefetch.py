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
"""Maximum bytes of results that wait to be consumed; above it, no further image is started."""


def ordered_map(
    pool: Executor, function: Callable[[Item], Result], items: Iterable[Item], *, ahead: int
) -> Generator[tuple[Item, Result], None, None]:
    """Yield each item with `function(item)`, in order, while the pool's threads work on up to `ahead` further items.

    Memory holds up to `_MAX_WAITING` bytes of results, and one image of any size for each thread. `pool` must have no
    other work meanwhile.
    """
    changed = Condition()
    futures: deque[tuple[Item, Future[Result]]] = deque()
    waiting: dict[int, int] = {}  # bytes of results, by the index of the item
    next_index = 0  # of the item that is yielded next, which never waits
    is_closed = False

    def work(index: int, item: Item) -> Result:
        with changed:
            changed.wait_for(lambda: is_closed or index <= next_index or sum(waiting.values()) <= _MAX_WAITING)
            if is_closed:
                raise RuntimeError("the results are no longer needed")
        result = function(item)
        with changed:
            waiting[index] = getattr(result, "nbytes", 0)
        return result

    def take_first() -> tuple[Item, Result]:
        nonlocal next_index
        item, future = futures.popleft()
        result = future.result()
        with changed:
            waiting.pop(next_index, None)
            next_index += 1
            changed.notify_all()
        return item, result

    try:
        for index, item in enumerate(items):
            futures.append((item, pool.submit(work, index, item)))
            if len(futures) > ahead:
                yield take_first()
        while futures:
            yield take_first()
    finally:
        with changed:
            is_closed = True
            changed.notify_all()
        for _, future in futures:
            future.cancel()
