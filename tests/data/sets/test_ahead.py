from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velogan.data.pictures.picture import admitted_by
from velogan.data.sets.ahead import _ROOM, in_order


class _Reader:
    """Reads pictures that are nothing but bytes which they claim; a size below zero fails."""

    def __init__(self, sizes: list[int], *, kept: float = 0.0) -> None:
        self.sizes, self.kept = sizes, kept
        self.now, self.most, self._lock = 0, 0, Lock()

    def read(self, number: int) -> np.ndarray:
        size = self.sizes[number]
        if size < 0:
            raise ValueError(f"number {number}")
        admitted_by.get()(size // 3)
        admitted_by.get()(size)
        self._add(size)
        time.sleep(0.001)
        self._add(-size)
        return np.broadcast_to(np.zeros(1, np.uint8), int(size * self.kept))

    def _add(self, size: int) -> None:
        with self._lock:
            self.now += size
            self.most = max(self.most, self.now)


SIZES = st.lists(st.sampled_from([2**10, 2**20, _ROOM // 3, _ROOM // 2 + 1, 2 * _ROOM, 5 * _ROOM]), max_size=30)
SOME = settings(max_examples=60, deadline=None, derandomize=True, database=None)


@pytest.mark.timeout(60)
@SOME
@given(SIZES, st.integers(1, 6), st.integers(0, 20), st.sampled_from([0.0, 0.1, 1.0]))
def test_results_come_in_order_and_pictures_keep_to_the_room(
    sizes: list[int], workers: int, ahead: int, kept: float
) -> None:
    reader = _Reader(sizes, kept=kept)
    with ThreadPoolExecutor(workers) as pool:
        found = list(in_order(pool, reader.read, range(len(sizes)), ahead=ahead))
    assert [number for number, _ in found] == list(range(len(sizes)))
    assert [result.nbytes for _, result in found] == [int(size * kept) for size in sizes]
    assert reader.most <= max([_ROOM, *sizes])  # a large one has the room for itself


def test_small_ones_run_at_the_same_time() -> None:
    reader = _Reader([2**20] * 40)
    with ThreadPoolExecutor(8) as pool:
        list(in_order(pool, reader.read, range(40), ahead=20))
    assert reader.most > 2**20


@pytest.mark.timeout(60)
def test_giving_up_leaves_nobody_waiting() -> None:
    large = [5 * _ROOM] * 6
    with pytest.raises(ValueError, match="number 1"), ThreadPoolExecutor(3) as pool:
        list(in_order(pool, _Reader([2**10, -1, *large]).read, range(8), ahead=8))
    with ThreadPoolExecutor(3) as pool:
        rest = in_order(pool, _Reader(large).read, range(6), ahead=6)
        next(rest)
        rest.close()  # pyright: ignore[reportAttributeAccessIssue]
