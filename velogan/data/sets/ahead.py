"""Work on pictures in threads: results in order, memory bounded for any size of pictures and number of threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future
from threading import Condition
from typing import TypeVar

from velogan.data.pictures.picture import admitted_by

Item = TypeVar("Item")
Result = TypeVar("Result")

_ROOM = 3 * 2**26
"""The most bytes that pictures decoded ahead and their results take together."""


def in_order(
    pool: Executor, function: Callable[[Item], Result], items: Iterable[Item], *, ahead: int
) -> Generator[tuple[Item, Result], None, None]:
    """Yield each item with `function(item)`, in order, while the pool's threads work on up to `ahead` of the next.

    A picture that `function` reads waits until there is room. The one that is due always gets room, alone if it is
    large. `pool` must have no other work meanwhile.
    """
    room = _Room()
    waiting: deque[tuple[int, Item, Future[Result]]] = deque()

    def work(number: int, item: Item) -> Result:
        token = admitted_by.set(lambda need: room.wait(number, need))
        try:
            result = function(item)
        except BaseException:
            room.keep(number, 0)
            raise
        finally:
            admitted_by.reset(token)
        room.keep(number, getattr(result, "nbytes", 0))
        return result

    def first() -> tuple[Item, Result]:
        number, item, future = waiting.popleft()
        room.call(number)
        return item, future.result()

    try:
        for number, item in enumerate(items):
            waiting.append((number, item, pool.submit(work, number, item)))
            if len(waiting) > ahead:
                yield first()
        while waiting:
            yield first()
    finally:
        room.close()
        for _, _, future in waiting:
            future.cancel()


class _Room:
    """The shared allowance of bytes: how many each item has taken, by its number."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._taken: dict[int, int] = {}
        self._busy: set[int] = set()  # items that got room and are not done
        self._due = 0
        self._closed = False

    def wait(self, number: int, need: int) -> None:
        """Wait until item `number` may take `need` bytes in all."""
        with self._changed:
            more = need - self._taken.get(number, 0)
            if more <= 0:
                return
            self._busy.discard(number)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed or self._fits(number, more))
            if self._closed:
                raise RuntimeError("nobody waits for this picture any more")
            self._busy.add(number)
            self._taken[number] = need

    def _fits(self, number: int, more: int) -> bool:
        return sum(self._taken.values()) + more <= _ROOM or (number == self._due and not self._busy)

    def keep(self, number: int, size: int) -> None:
        """Item `number` is done: free all but the `size` bytes of its result."""
        with self._changed:
            self._busy.discard(number)
            self._taken[number] = size
            self._changed.notify_all()

    def call(self, number: int) -> None:
        """Item `number` is the next to be returned: the bytes of the results before it are free again."""
        with self._changed:
            self._due = number
            self._taken = {other: size for other, size in self._taken.items() if other >= number}
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the waiting of all items, which fail with RuntimeError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
