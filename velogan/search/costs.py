"""What each operation of a generator of cells costs at its place: counted, or measured in milliseconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from velogan.networks import sizes
from velogan.networks.cells import Kind, Slot, choices, hand_made, operation
from velogan.networks.generators import GeneratorConfig, build_generator

Ends = tuple[int, int]
"""Channels of the pictures that go into a generator and come out."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Costs:
    """Of every operation at each place of a generator, in order, and of all that is not chosen."""

    places: tuple[Mapping[str, float], ...]
    rest: float

    def of(self, operations: Sequence[str]) -> float:
        """Of the generator with these operations."""
        return self.rest + sum(place[name] for place, name in zip(self.places, operations, strict=True))

    @property
    def cheapest(self) -> tuple[str, ...]:
        """The operations of the generator that costs least."""
        return tuple(min(place, key=place.__getitem__) for place in self.places)

    @property
    def dearest(self) -> tuple[str, ...]:
        """The operations of the generator that costs most."""
        return tuple(max(place, key=place.__getitem__) for place in self.places)

    @property
    def average(self) -> float:
        """Of a generator in which all operations have equal shares."""
        return self.rest + sum(sum(place.values()) / len(place) for place in self.places)


class Place(NamedTuple):
    """A slot, and the shape of what goes in."""

    slot: Slot
    shape: Shape


_SIDES: dict[Kind, float] = {"e": 1 / 2, "r": 1, "d": 2}


class _Seen(nn.Module):
    """Stands in a slot and notes what goes in; what comes out has the right shape and no values."""

    def __init__(self, slot: Slot, note: Callable[[Place], None]):
        super().__init__()
        self.slot, self.note = slot, note

    def forward(self, x: Tensor) -> Tensor:
        self.note(Place(self.slot, tuple(x.shape)))
        height, width = (int(_SIDES[self.slot.kind] * side) for side in x.shape[2:])
        return x.new_empty(len(x), self.slot.c_out, height, width)


def places(config: GeneratorConfig, *, ends: Ends, side: int) -> tuple[list[Place], int]:
    """The places for operations in a generator, and the parameters of all else in it. Nothing is computed."""
    found: list[Place] = []
    config = config.model_copy(update={"operations": (), "init": "normal"})
    with torch.device("meta"), torch.no_grad():
        net = build_generator(
            config, in_channels=ends[0], out_channels=ends[1], fill=lambda slot: _Seen(slot, found.append)
        )
        net.eval()(torch.empty(1, ends[0], side, side))
    return found, sizes.parameters(net)


def _priced(found: Sequence[Place], price: Callable[[str, Place], float]) -> tuple[dict[str, float], ...]:
    """The prices of all operations at each place; places that are alike are asked for once."""
    known = {
        place: {name: price(name, place) for name in choices(place.slot.kind, place.slot.space)}
        for place in dict.fromkeys(found)
    }
    return tuple(known[place] for place in found)


class Counted:
    """MACs or parameters on a picture of `side` x `side`, exactly as `sizes.size` counts them."""

    def __init__(self, what: Literal["macs", "parameters"]):
        self.what = what

    def costs(self, config: GeneratorConfig, *, ends: Ends, side: int) -> Costs:
        """Of all operations that a generator of the width of `config` may have."""
        found, parameters = places(config, ends=ends, side=side)
        return Costs(_priced(found, self._price), parameters if self.what == "parameters" else 0)

    def _price(self, name: str, place: Place) -> float:
        with torch.device("meta"):
            net = operation(name, place.slot)
            return sizes.parameters(net) if self.what == "parameters" else sizes.macs(net, torch.empty(place.shape))

    def built(self, config: GeneratorConfig, *, ends: Ends, side: int) -> float:
        """Of the generator that `config` describes."""
        return getattr(sizes.size(config, in_channels=ends[0], out_channels=ends[1], side=side), self.what)


Measure = Callable[[Sequence[tuple[nn.Module, Shape]]], Sequence[float]]
"""Milliseconds that each network takes on a picture of a shape."""


class Measured:
    """Milliseconds, as `Counted` has them. What was measured once is remembered for as long as this lives.

    A network takes longer than its operations, for its norms and activations: as much longer as the generator of 3x3
    convolutions does (if that is faster, operations count less by that ratio). So a sum over operations is a forecast;
    the truth is what `built` measures.
    """

    def __init__(self, measure: Measure):
        self._measure = measure
        self._operations: dict[tuple[str, Place], float] = {}
        self._built: dict[tuple[GeneratorConfig, Ends, int], float] = {}

    def costs(self, config: GeneratorConfig, *, ends: Ends, side: int) -> Costs:
        """Of all operations that a generator of the width of `config` may have."""
        found, _ = places(config, ends=ends, side=side)
        missing = [
            (name, place)
            for place in dict.fromkeys(found)
            for name in choices(place.slot.kind, place.slot.space)
            if (name, place) not in self._operations
        ]
        with torch.random.fork_rng(devices=[]):  # a training's random numbers stay as they were
            nets = [(operation(name, place.slot), place.shape) for name, place in missing]
        self._operations |= zip(missing, self._measure(nets) if nets else [])
        priced = _priced(found, lambda name, place: self._operations[name, place])
        known = hand_made([place.slot.kind for place in found], space=config.space)
        whole = self.built(config.model_copy(update={"operations": known}), ends=ends, side=side)
        alone = Costs(priced, 0).of(known)
        ratio = min(1, whole / alone)
        return Costs(tuple({name: ratio * cost for name, cost in one.items()} for one in priced), whole - ratio * alone)

    def built(self, config: GeneratorConfig, *, ends: Ends, side: int) -> float:
        """Of the generator that `config` describes."""
        key = (config, ends, side)
        if key not in self._built:
            with torch.random.fork_rng(devices=[]):
                net = build_generator(config, in_channels=ends[0], out_channels=ends[1])
            (self._built[key],) = self._measure([(net, (1, ends[0], side, side))])
        return self._built[key]


Meter = Counted | Measured
"""Says what generators cost."""

ROUNDS = 7
_CALLS_IN_A_ROW = 10  # on CUDA, so that the host's part of a call is hidden, as it is within a network


def by_turns(device: torch.device, *, rounds: int = ROUNDS, clock: Callable[[], float] = time.perf_counter) -> Measure:
    """Measures plain networks on `device` in float32: the median of some rounds, in each of which all have a turn."""
    calls = _CALLS_IN_A_ROW if device.type == "cuda" else 1

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    @torch.no_grad()
    def measure(nets: Sequence[tuple[nn.Module, Shape]]) -> list[float]:
        with torch.random.fork_rng(devices=[]):
            pictures = {shape: torch.randn(shape).to(device) for shape in dict.fromkeys(shape for _, shape in nets)}
        ready = [(net.eval().to(device), pictures[shape]) for net, shape in nets]
        taken: list[list[float]] = [[] for _ in ready]
        for round in range(-1, rounds):  # the first is not counted
            for (net, picture), found in zip(ready, taken):
                wait()
                start = clock()
                for _ in range(calls):
                    net(picture)
                wait()
                if round >= 0:
                    found.append(1000 * (clock() - start) / calls)
        return [median(found) for found in taken]

    return measure
