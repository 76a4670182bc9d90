"""The work in a profile: kernels and copies on a CUDA device, with their launches, or operators on a CPU.

Times are microseconds of the trace's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Span = tuple[float, float]
Kind = Literal["compute", "memory", "communication"]

STEP = "step"
"""Name of a step's range in a trace. Ranges of phases and networks lie within it."""

CONVOLUTION, NORM = "convolution", "norm, activation, padding"
MOVEMENT, UPDATE = "copies and fills", "optimizer"
COMPILED, OTHER = "fused by the compiler", "other"
GROUPS = (CONVOLUTION, NORM, MOVEMENT, UPDATE, COMPILED, OTHER)


@dataclass(frozen=True)
class Launch:
    """A runtime call that starts one kernel on a device, or all kernels of a captured graph."""

    start: float
    duration: float
    kernels: int = 1

    @property
    def end(self) -> float:
        return self.start + self.duration


@dataclass(frozen=True)
class Activity:
    """One kernel or operator. `spans` exclude the operators inside it. `launch` and `stream` are None on a CPU."""

    name: str
    spans: tuple[Span, ...]
    kind: Kind
    group: str
    launch: Launch | None = None
    stream: int | None = None

    @property
    def start(self) -> float:
        return self.spans[0][0]

    @property
    def microseconds(self) -> float:
        return sum(end - start for start, end in self.spans)


@dataclass(frozen=True)
class Timeline:
    """The work within `window`, sorted by start; `steps` are spans on the host."""

    device: Literal["cpu", "cuda"]
    window: Span
    steps: list[Span]
    work: list[Activity]
