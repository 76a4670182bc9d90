"""Pictures that wait for the one worker: a bounded queue, in which those of equal size go together."""

from __future__ import annotations

import asyncio
import ctypes
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from velogan.data.pictures.images import Picture
from velogan.serve.limits import Refusal
from velogan.translate.doubt import Doubt
from velogan.types import Direction


class Order(NamedTuple):
    """What is asked for: a translation, and where it is not to be trusted."""

    direction: Direction
    doubt: bool = False


class Served(NamedTuple):
    """A translation; the map of doubt that was asked for, or why there is none."""

    picture: Picture
    doubt: Doubt | None = None
    no_doubt: str | None = None


Translate = Callable[[Order, Sequence[Picture], Callable[[], None]], list[Served]]
"""What is asked for of pictures of one size and type, and what is called now and then: it raises when nobody waits."""

_AHEAD_BYTES = 2**28
"""Of decoded pictures that wait: with more, those that come next stay encoded."""


_LARGE = 2**22
"""Bytes of a picture after which freed memory is given back to the system."""


@dataclass(eq=False)
class _Place:
    """One picture in the queue; `result` is its translation, or cancelled where nobody waits any more."""

    order: Order
    picture: Picture
    result: asyncio.Future[Served]
    started: bool = False

    @property
    def kind(self) -> tuple[Order, tuple[int, ...], str]:
        """What those have in common that may go together."""
        return self.order, self.picture.pixels.shape, self.picture.pixels.dtype.name


class _Left(Exception):
    """Nobody waits for this translation any more."""


class Queue:
    """Lets `most` requests in, and translates their pictures one batch after another in a thread of its own.

    A batch: the picture that has waited longest, and all of its kind up to `batch_pixels` pixels. Everything but
    `translate` runs in the event loop, so nothing needs a lock.
    """

    def __init__(self, translate: Translate, *, most: int, batch_pixels: int):
        self._translate, self._most, self._batch_pixels = translate, most, batch_pixels
        self._places: deque[_Place] = deque()
        self._inside, self._closed = 0, False
        self._seconds = 1.0  # that a batch takes: a moving average
        self._changed = asyncio.Condition()
        self._decoding = asyncio.Semaphore(2)
        self._held = 0
        self.batches: list[int] = []

    @property
    def inside(self) -> int:
        """Requests that have been let in and are not answered."""
        return self._inside

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Counts a request while it is served. Raises `Refusal` where there are too many already."""
        if self._closed:
            raise _stopping()
        if self._inside >= self._most:
            raise Refusal(
                503, "busy", f"{self._inside} pictures are waiting already: try again soon", after=self.wait()
            )
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    def wait(self) -> int:
        """Seconds after which there should be room: half of what those inside will take."""
        return max(1, min(60, math.ceil(self._inside * self._seconds / 2)))

    async def translated(
        self, order: Order, read: Callable[[], Picture], pool: ThreadPoolExecutor, *, seconds: float
    ) -> tuple[Picture, Served]:
        """The picture that `read` decodes in a thread of `pool`, and what is made of it, both within `seconds`.

        Cancelling this takes it out of the queue; a translation in tiles that has begun ends with the tile.
        """
        place: _Place | None = None
        try:
            async with asyncio.timeout(seconds):
                async with self._decoding:
                    async with self._changed:
                        await self._changed.wait_for(lambda: self._held < _AHEAD_BYTES)
                    picture = await asyncio.get_running_loop().run_in_executor(pool, read)
                    place = self._join(order, picture)
                await self._tell()
                return picture, await place.result
        except TimeoutError:
            if place is not None and place.started:
                message = f"the translation took more than {seconds:g} s: send a smaller picture"
                raise Refusal(504, "too_slow", message) from None
            raise Refusal(503, "busy", f"no turn within {seconds:g} s: try again", after=self.wait()) from None
        finally:
            if place is not None:
                place.result.cancel()
                self._held -= place.picture.pixels.nbytes
                if place in self._places:
                    self._places.remove(place)
                await self._tell()

    def _join(self, order: Order, picture: Picture) -> _Place:
        if self._closed:
            raise _stopping()
        place = _Place(order, picture, asyncio.get_running_loop().create_future())
        self._held += picture.pixels.nbytes
        self._places.append(place)
        return place

    async def work(self) -> None:
        """Translates what comes into the queue, until cancelled."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="translate") as thread:
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda: bool(self._places))
                    batch = self._next()
                began = time.monotonic()
                self.batches = [*self.batches[-999:], len(batch)]
                large = batch[0].picture.pixels.nbytes > _LARGE
                _settle(batch, await loop.run_in_executor(thread, self._together, batch))
                self._seconds += 0.2 * ((time.monotonic() - began) / len(batch) - self._seconds)
                del batch  # a large picture must not stay while nothing is to be done
                if large:
                    loop.call_later(1, _give_back)  # when the answer has been made of it

    def close(self) -> None:
        """Lets nobody in, and refuses all that wait; what is being translated is finished."""
        self._closed = True
        for place in self._places:
            if not place.result.done():
                place.result.set_exception(_stopping())
        self._places.clear()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _next(self) -> list[_Place]:
        first = self._places[0]
        height, width = first.picture.pixels.shape[:2]
        most = max(1, self._batch_pixels // (height * width))
        batch = [place for place in self._places if place.kind == first.kind][:most]
        for place in batch:
            place.started = True
            self._places.remove(place)
        return batch

    def _together(self, batch: Sequence[_Place]) -> list[Served] | list[BaseException]:
        """Their translations, or why not. What fails together is tried alone, lest one takes the others with it."""

        def go_on() -> None:
            if all(place.result.done() for place in batch):
                raise _Left

        try:
            go_on()
            return self._translate(batch[0].order, [place.picture for place in batch], go_on)
        except Exception as error:
            if len(batch) > 1 and not isinstance(error, _Left):
                return [one for place in batch for one in self._together([place])]  # pyright: ignore[reportReturnType]
            if not isinstance(error, (_Left, ValueError)):
                print(f"velogan: a translation failed: {type(error).__name__}: {error}"[:500], file=sys.stderr)
            return [error for _ in batch]


def _settle(batch: Sequence[_Place], outcome: Sequence[Served | BaseException]) -> None:
    for place, one in zip(batch, outcome):
        if place.result.done():
            continue
        if isinstance(one, BaseException):
            place.result.set_exception(one)
        else:
            place.result.set_result(one)


def _give_back() -> None:
    """Has glibc give freed memory back to the system, of which it would keep what lies between blocks in use."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _stopping() -> Refusal:
    return Refusal(503, "stopping", "the server is stopping", after=10)
