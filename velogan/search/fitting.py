"""Which operations, and which width, hold a budget: the search for them, given the costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from velogan.search.costs import Costs

Shares = Sequence[Sequence[float]]
"""Of the operations at each place, in the order of `Costs.places`."""

MOST_WIDE = 4096


class Bounds(NamedTuple):
    """What a network may cost."""

    least: float
    most: float

    def hold(self, cost: float) -> bool:
        """Whether `cost` is between them."""
        return self.least <= cost <= self.most

    def merit(self, cost: float, likelihood: float) -> tuple[int, float]:
        """What makes one network better than another: to cost no more, then to cost enough, then to be likely."""
        if cost > self.most:
            return 0, -cost
        return (2, likelihood) if cost >= self.least else (1, cost)


def favourites(shares: Shares, costs: Costs) -> tuple[str, ...]:
    """The operations with the largest shares."""
    return tuple(list(place)[list(share).index(max(share))] for share, place in zip(shares, costs.places, strict=True))


def likelihood(operations: Sequence[str], shares: Shares, costs: Costs) -> float:
    """The logarithm of the product of these operations' shares."""
    rows = zip(operations, shares, costs.places, strict=True)
    return sum(_log(share[list(place).index(name)]) for name, share, place in rows)


_BINS = 1000


class _Beginning(NamedTuple):
    """The operations at the first places of a generator."""

    likelihood: float
    cost: float
    names: tuple[str, ...]


def likeliest(shares: Shares, costs: Costs, bounds: Bounds) -> tuple[str, ...]:
    """The operations with the largest product of shares whose costs are, together, within `bounds`.

    Where there are none, those nearest below; where none are below, the cheapest. Found place by place: of beginnings
    that cost the same within a thousandth of the budget, the likeliest is kept. So what is found may be less likely
    than the best by that much, but it does cost what it is said to cost.
    """
    kept, rest = [_Beginning(0, costs.rest, ())], sum(min(place.values()) for place in costs.places)
    for place, share in zip(costs.places, shares, strict=True):
        rest -= min(place.values())
        reached: dict[int, _Beginning] = {}
        for beginning in kept:
            for (name, more), one in zip(place.items(), share, strict=True):
                cost, chance = beginning.cost + more, beginning.likelihood + _log(one)
                bin = int(_BINS * cost / bounds.most)
                if cost + rest <= bounds.most and (bin not in reached or chance > reached[bin].likelihood):
                    reached[bin] = _Beginning(chance, cost, (*beginning.names, name))
        kept = list(reached.values())
    return max(kept, key=lambda end: bounds.merit(end.cost, end.likelihood)).names if kept else costs.cheapest


def _log(share: float) -> float:
    return math.log(share + 1e-9)


def widest(cost: Callable[[int], float], most: float, *, start: int, enough: float = math.inf) -> int:
    """The largest width whose cost is no more than `most`, 0 if there is none.

    The first that is found to cost at least `enough` ends it. Costs grow with about the square of the width.
    """
    low, high, width = 0, MOST_WIDE + 1, start
    while high - low > 1:
        spent = cost(width)
        if enough <= spent <= most:
            return width
        low, high = (width, high) if spent <= most else (low, width)
        guess = round(width * math.sqrt(most / spent))
        width = min(max(guess, low + 1), high - 1)
    return low
