"""A budget for searched generators: "no larger than this", in MACs, parameters, bytes or measured milliseconds.

A budget is for each translator by itself, since that is what somebody uses. The generators of a search may come out
with unequal operations, and then with unequal widths, but none costs more than the budget, and each at least 95 % of
it, where the space has such a network.

- *While searching* a penalty is added to the objective: how far the expected cost of a generator lies above the
  budget. A search works with narrow networks to save time; the penalty counts at the width that the result will have.
  That width is the user's, H. Where the user gives none, it is the width at which a generator with equal shares of all
  operations costs the budget: what a search begins with is just affordable, and nothing may get dearer than that.
- *When operations are derived*, `Limit.fit` makes the cost exact. Without a width given, the operations stay as found
  and H is the largest that the budget allows. With a width given, H stays, and the operations are those of the
  generator that has the largest product of shares among all that cost from 95 to 100 % of the budget. The found ones,
  if they do; else some are replaced, by cheaper or by dearer ones. Where H is so small that a step of one is more
  than 5 %, both are done.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from velogan.networks.generators import GeneratorConfig
from velogan.networks.sizes import FLOAT32
from velogan.search.costs import Costs, Counted, Ends, Measured, Meter, by_turns
from velogan.search.fitting import Bounds, Shares, favourites, likeliest, likelihood, widest
from velogan.search.supernet import mixtures
from velogan.types import Direction, Nets

WITHIN = 0.95
"""A result costs at least this share of its budget."""

Unit = Literal["MAC", "param", "ms"]

_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_UNITS: dict[str, tuple[Unit, float]] = {
    "mac": ("MAC", 1),
    "macs": ("MAC", 1),
    "param": ("param", 1),
    "params": ("param", 1),
    "parameters": ("param", 1),
    "b": ("param", 1 / FLOAT32),
    "ms": ("ms", 1),
}
_WRITTEN = re.compile(
    r"(\d{1,15}(?:\.\d{1,15})?) ?(ms|([kmgt]?)(macs?|params?|parameters|b))", re.ASCII | re.IGNORECASE
)


@dataclass(frozen=True)
class Budget:
    """The most that each generator may cost: `amount` of `unit`."""

    amount: float
    unit: Unit

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Of 2GMAC (multiplications), 5Mparam, 20MB (of float32, 10^6 bytes) or 30ms. ValueError for all else."""
        found = _WRITTEN.fullmatch(text.strip())
        if found is None or float(found[1]) == 0:
            raise ValueError(
                f"budget={text!r:.40} is no amount, above 0 and with a unit, of multiplications, parameters, bytes or "
                "milliseconds: write 2GMAC, 5Mparam, 20MB or 30ms"
            )
        number, ending, factor, counted = found.groups()
        unit, each = _UNITS[(counted or ending).lower()]
        return cls(float(number) * _FACTORS[(factor or "").lower()] * each, unit)

    def meter(self, device: torch.device | None = None) -> Meter:
        """What counts or measures in the unit; milliseconds are of plain networks in float32 on `device`."""
        if self.unit == "ms":
            return Measured(by_turns(device or torch.device("cpu")))
        return Counted("macs" if self.unit == "MAC" else "parameters")

    def __str__(self) -> str:
        return self.text(self.amount)

    def text(self, amount: float, *, rounded: Callable[[float], int] = round) -> str:
        """An amount of this unit, with three digits, as `parse` reads it."""
        prefix = "" if self.unit == "ms" else next((name for name in "TGMk" if amount >= _FACTORS[name.lower()]), "")
        amount /= _FACTORS[prefix.lower()]
        digits = max(0, 2 - math.floor(math.log10(abs(amount)))) if amount else 0
        return f"{rounded(amount * 10**digits) / 10**digits:.{digits}f}{prefix}{self.unit}"


@dataclass(frozen=True)
class Fit:
    """A generator that holds a budget: its operations and width, and what it costs as built, in the budget's unit.

    `replaced` operations are not those with the largest shares; `likelihood` is the logarithm of the product of shares.
    """

    operations: tuple[str, ...]
    hidden: int
    cost: float
    replaced: int
    likelihood: float


def check(
    budget: Budget,
    generators: Mapping[Direction, GeneratorConfig],
    *,
    ends: Mapping[Direction, Ends],
    side: int,
    hidden: int | None,
    meter: Meter,
) -> None:
    """ValueError for a budget that no generator can hold, and for one that is beyond the largest of the given width.

    What it takes is what `Limit` takes.
    """
    at = f"hidden={hidden or 1} at {side}x{side} pixels"
    for way, config in generators.items():
        narrow = config.model_copy(update={"channels": hidden or 1, "operations": ()})
        costs = meter.costs(narrow, ends=ends[way], side=side)
        if (least := costs.of(costs.cheapest)) > budget.amount:
            less = "" if hidden is None or hidden == 1 else ", or a smaller hidden"
            least = budget.text(least, rounded=math.ceil)
            raise ValueError(f"budget={budget} is less than the smallest generator of {at}, {least}: give that{less}")
        if hidden and (most := costs.of(costs.dearest)) < WITHIN * budget.amount:
            most = budget.text(most, rounded=math.floor)
            raise ValueError(
                f"budget={budget} is more than the largest generator of {at} can use, {most}: give that, or leave "
                "hidden out"
            )


class Limit(nn.Module):
    """A budget for each of the generators of a search.

    `generators` are those that the search is about, by direction, of any width; `ends` their pictures' channels;
    `side` that of the pictures on which they are counted or measured, in pixels; `hidden` the width that the user
    wants, if any. Its buffers are the costs of operations, so that a continued
    search has those that it began with, even where they were measured.

    ValueError as of `check`.
    """

    def __init__(
        self,
        budget: Budget,
        generators: Mapping[Direction, GeneratorConfig],
        *,
        ends: Mapping[Direction, Ends],
        side: int,
        hidden: int | None = None,
        meter: Meter | None = None,
    ):
        super().__init__()
        self.budget, self.meter = budget, meter or budget.meter()
        self._given, self._bounds = hidden, Bounds(WITHIN * budget.amount, budget.amount)
        self._generators, self._ends, self.side = dict(generators), dict(ends), side
        self._known: dict[tuple[Direction, int], Costs] = {}
        self.hidden: dict[Direction, int] = {}
        check(budget, generators, ends=ends, side=side, hidden=hidden, meter=self.meter)
        for way in generators:
            self.hidden[way] = hidden or self._affordable(way)
            costs = self._costs(way, self.hidden[way])
            flat = [cost for place in costs.places for cost in place.values()]
            self.register_buffer(f"costs_{way}", torch.tensor([costs.rest, *flat], dtype=torch.float64))

    def expected(self, way: Direction, net: nn.Module) -> Tensor:
        """The cost of the generator `net`, a supernet, by its shares, at the width of the result; float64.

        Where all shares are 1 or 0 this is the cost of the derived network: exactly, where it is counted.
        """
        costs = self.get_buffer(f"costs_{way}")
        return costs[0] + torch.cat(self._shares(net)).double() @ costs[1:]

    def penalty(self, nets: Mapping[Direction, nn.Module] | Nets) -> Tensor:
        """`sum max(0, log(expected cost / budget))^2` over generators: 0.5 for one that is twice as large as allowed.

        It and its gradient are zero where the budget holds, and begin smoothly there.
        """
        excess = [torch.log(self.expected(way, nets[way]) / self.budget.amount).clamp(min=0) for way in self.hidden]
        return torch.stack(excess).square().sum().float()

    @torch.no_grad()
    def fit(self, nets: Mapping[Direction, nn.Module] | Nets) -> dict[Direction, Fit]:
        """The generators to build, by direction; see the top of this file."""
        return {way: self._fit(way, [one.tolist() for one in self._shares(nets[way])]) for way in self.hidden}

    def _shares(self, net: nn.Module) -> list[Tensor]:
        """The shares of operations at each place where they will stand."""
        return [mixed.alpha.softmax(0) for mixed in mixtures(net).values()]

    def _config(self, way: Direction, width: int, operations: tuple[str, ...] = ()) -> GeneratorConfig:
        return self._generators[way].model_copy(update={"channels": width, "operations": operations})

    def _costs(self, way: Direction, width: int) -> Costs:
        if (way, width) not in self._known:
            found = self.meter.costs(self._config(way, width), ends=self._ends[way], side=self.side)
            self._known[way, width] = found
        return self._known[way, width]

    def _built(self, way: Direction, width: int, operations: tuple[str, ...]) -> float:
        config = self._config(way, width, operations)
        return self.meter.built(config, ends=self._ends[way], side=self.side)

    def _affordable(self, way: Direction) -> int:
        """The width at which equal shares of all operations cost the budget, or a little less."""
        start = self._generators[way].channels
        return max(
            1,
            widest(
                lambda width: self._costs(way, width).average,
                self.budget.amount,
                start=start,
                enough=self._bounds.least,
            ),
        )

    def _fit(self, way: Direction, shares: Shares) -> Fit:
        if self._given:
            return self._best(self._fits(way, shares, self._given))
        found = favourites(shares, self._costs(way, self.hidden[way]))
        width = widest(lambda width: self._built(way, width, found), self.budget.amount, start=self.hidden[way])
        fits = [self._made(way, width, found, shares)] if width else []
        if not (fits and self._bounds.hold(fits[0].cost)):  # widths are too far apart
            fits += [fit for near in (width, width + 1) if near for fit in self._fits(way, shares, near)]
        return self._best(fits)

    def _fits(self, way: Direction, shares: Shares, width: int) -> list[Fit]:
        """The likeliest generators of a width that cost what they should.

        More than one only where the cost of a built network is not the sum of its operations' costs: then, aiming
        higher or lower, by as much as the forecast was wrong.
        """
        costs, most, tried = self._costs(way, width), self.budget.amount, []
        for _ in range(_TRIES):
            operations = likeliest(shares, costs, Bounds(WITHIN * most, most))
            tried.append(fit := self._made(way, width, operations, shares))
            forecast = costs.of(operations)
            if self._bounds.hold(fit.cost) or fit.cost == forecast:
                return tried
            most = self.budget.amount * forecast / fit.cost  # then these operations are no longer within it
        return [*tried, self._made(way, width, costs.cheapest, shares)]

    def _made(self, way: Direction, width: int, operations: tuple[str, ...], shares: Shares) -> Fit:
        costs, cost = self._costs(way, self.hidden[way]), self._built(way, width, operations)
        replaced = sum(one != other for one, other in zip(operations, favourites(shares, costs), strict=True))
        return Fit(operations, width, cost, replaced, likelihood(operations, shares, costs))

    def _best(self, fits: Sequence[Fit]) -> Fit:
        return max(fits, key=lambda fit: self._bounds.merit(fit.cost, fit.likelihood))


_TRIES = 6
