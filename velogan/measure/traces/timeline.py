"""The contents of a profile: pieces of work, each with its phase, its network and the call that launched it.

On CUDA a piece of work is a kernel or a copy on the device; on a CPU it is an operator, without the operators inside
it. Times are microseconds of the trace's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Span = tuple[float, float]
Kind = Literal["compute", "memory", "communication"]

STEP, LOADER = "step", "loader"
"""Names of ranges in the trace of a training, besides its phases and networks."""

REST, LOSSES, OPTIMIZER = "rest", "losses", "optimizer"
"""Places outside networks: between phases; a phase's losses and checks; its update."""

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
class Owner:
    """Where work belongs: the phase, the network (or REST, LOSSES, OPTIMIZER, LOADER), and forward or backward."""

    phase: str
    network: str
    way: Literal["forward", "backward", "update", ""]


@dataclass(frozen=True)
class Launch:
    """The start of work: on CUDA the runtime call, on a CPU the host's time since the last operator.

    `kernels` is the number of kernels that the call started: one, or all of a captured graph.
    """

    start: float
    duration: float
    kernels: int = 1

    @property
    def end(self) -> float:
        return self.start + self.duration


@dataclass(frozen=True)
class Activity:
    """One kernel or operator. `spans` exclude the operators inside it; `whole` is the duration including them.

    `launch` is None for an operator that another operator called, `stream` is the device's, None on a CPU.
    """

    name: str
    spans: tuple[Span, ...]
    whole: float
    kind: Kind
    group: str
    place: Owner
    launch: Launch | None = None
    stream: int | None = None

    @property
    def start(self) -> float:
        return self.spans[0][0]

    @property
    def microseconds(self) -> float:
        return sum(end - start for start, end in self.spans)


@dataclass(frozen=True)
class Allocation:
    """Memory that is allocated (`size` > 0) or freed (`size` < 0), in bytes."""

    time: float
    address: int
    size: int
    place: Owner
    on_device: bool


@dataclass(frozen=True)
class Timeline:
    """The events within `window`, in order of time; `steps`, `phases` and `updates` are spans on the host."""

    device: Literal["cpu", "cuda"]
    window: Span
    steps: list[Span]
    phases: list[tuple[str, Span]]
    updates: list[Span]
    work: list[Activity]
    allocations: list[Allocation] = field(default_factory=list)
