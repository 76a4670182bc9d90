"""A random order of many pictures that looks at few at a time, computed from a place in it: nothing is stored."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

RUN = 64
"""Pictures that lie side by side and stay near each other in the order."""


def random_from(*seed: int) -> np.random.Generator:
    """Random numbers that follow from some numbers, none of them negative."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))


class BoundedShuffle:
    """The numbers from 0 to `count` in random order, again and again, each time in another.

    Runs of `RUN` pictures are laid in random order; of that, every `buffer` pictures are shuffled. So the pictures of
    one buffer are few runs, which lie together in their files. The order follows from `seed` alone, whose numbers
    are not negative.
    """

    def __init__(self, count: int, buffer: int, seed: tuple[int, ...]):
        self.count, self._buffer, self._seed = count, buffer, seed
        self._runs = lru_cache(maxsize=2)(self._draw_runs)
        self._part = lru_cache(maxsize=2)(self._draw_part)

    def __getitem__(self, place: int) -> int:
        """Give the number at `place`, counted from 0 without end."""
        turn, place = divmod(place, self.count)
        part, place = divmod(place, self._buffer)
        return int(self._part(turn, part)[place])

    def _draw_runs(self, turn: int) -> tuple[np.ndarray, np.ndarray]:
        """The runs' first numbers, in the order of this turn, and the places where they begin."""
        first = random_from(*self._seed, turn).permutation(np.arange(0, self.count, RUN))
        lengths = np.minimum(RUN, self.count - first)
        return first, np.cumsum(lengths) - lengths

    def _draw_part(self, turn: int, part: int) -> np.ndarray:
        first, begins = self._runs(turn)
        places = np.arange(part * self._buffer, min((part + 1) * self._buffer, self.count))
        run = np.searchsorted(begins, places, "right") - 1
        return random_from(*self._seed, turn, 1 + part).permutation(first[run] + places - begins[run])
