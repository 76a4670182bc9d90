from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velogan.data.sets.prefetch import _MAX_WAITING, ordered_map


class _Reader:
    """Gives images of the named sizes in bytes; a size below zero fails."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes, self.begun, self._lock = sizes, 0, Lock()

    def read(self, number: int) -> np.ndarray:
        with self._lock:
            self.begun += 1
        time.sleep(0.001)
        if self.sizes[number] < 0:
            raise ValueError(f"number {number}")
        return np.broadcast_to(np.zeros(1, np.uint8), self.sizes[number])


SIZES = st.lists(st.sampled_from([2**10, 2**20, _MAX_WAITING // 2 + 1, 5 * _MAX_WAITING]), max_size=30)


@pytest.mark.timeout(60)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(SIZES, st.integers(1, 6), st.integers(0, 20))
def test_results_come_in_order_and_few_large_images_are_in_flight(sizes: list[int], threads: int, ahead: int) -> None:
    reader, large = _Reader(sizes), _MAX_WAITING // 2
    with ThreadPoolExecutor(threads) as pool:
        for taken, (number, result) in enumerate(
            ordered_map(pool, reader.read, range(len(sizes)), ahead=ahead), start=1
        ):
            assert (number, result.nbytes) == (taken - 1, sizes[number])
            assert reader.begun - taken <= ahead + 1
            if min(sizes) > large:
                assert reader.begun - taken <= 2 + threads
    assert reader.begun == len(sizes)


@pytest.mark.timeout(60)
def test_giving_up_leaves_nobody_waiting() -> None:
    large = [5 * _MAX_WAITING] * 6
    with pytest.raises(ValueError, match="number 1"), ThreadPoolExecutor(3) as pool:
        list(ordered_map(pool, _Reader([2**10, -1, *large]).read, range(8), ahead=8))
    with ThreadPoolExecutor(3) as pool:
        rest = ordered_map(pool, _Reader(large).read, range(6), ahead=6)
        next(rest)
        rest.close()
