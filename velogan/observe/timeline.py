"""What a profile is made of: pieces of work, each with its phase, its network and the call that launched it.

On CUDA a piece of work is a kernel or a copy on the device; on a CPU it is an operator, without the operators inside
it. Times are microseconds of the trace's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Span = tuple[float, float]
Kind = Literal["compute", "memory", "communication"]

STEP, LOADER = "step", "loader"
"""Ranges that a profiled training is expected to name, besides its phases and networks."""

REST, LOSSES, OPTIMIZER = "rest", "losses", "optimizer"
"""Places that are no network: between phases; a phase's own losses and checks; its update."""

CONVOLUTION, NORM, MOVEMENT, UPDATE, COMPILED, OTHER = (
    "convolution",
    "norm, activation, padding",
    "copies and fills",
    "optimizer",
    "fused by the compiler",
    "other",
)
GROUPS = (CONVOLUTION, NORM, MOVEMENT, UPDATE, COMPILED, OTHER)


@dataclass(frozen=True)
class Place:
    """Where work belongs: the phase, the network (or REST, LOSSES, OPTIMIZER, LOADER) and the way through it."""

    phase: str
    network: str
    way: Literal["forward", "backward", "update", ""]


@dataclass(frozen=True)
class Launch:
    """What it took to start work: on CUDA the runtime call, on a CPU the host's time since the operator before.

    `kernels` is how many kernels the call started: one, or all of a captured graph.
    """

    start: float
    duration: float
    kernels: int = 1

    @property
    def end(self) -> float:
        return self.start + self.duration


@dataclass(frozen=True)
class Work:
    """One kernel or operator. `spans` leave out operators inside; `whole` is the duration with them.

    `launch` is None for an operator that another one called.
    """

    name: str
    spans: tuple[Span, ...]
    whole: float
    kind: Kind
    group: str
    place: Place
    launch: Launch | None = None

    @property
    def start(self) -> float:
        return self.spans[0][0]

    @property
    def microseconds(self) -> float:
        return sum(end - start for start, end in self.spans)


@dataclass(frozen=True)
class Allocation:
    """Memory taken (`size` > 0) or given back (< 0), in bytes."""

    time: float
    address: int
    size: int
    place: Place
    on_device: bool


@dataclass(frozen=True)
class Timeline:
    """What happened within `window`, in order of time: `steps` as spans on the host, the work, the memory."""

    device: Literal["cpu", "cuda"]
    window: Span
    steps: list[Span]
    phases: list[tuple[str, Span]]
    updates: list[Span]
    work: list[Work]
    allocations: list[Allocation] = field(default_factory=list)
