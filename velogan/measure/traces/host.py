"""The host's part of a trace: the calls, and the phase and network of each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from velogan.measure.traces.timeline import (
    COMPILED,
    CONVOLUTION,
    LOADER,
    LOSSES,
    MOVEMENT,
    NORM,
    OPTIMIZER,
    REST,
    STEP,
    UPDATE,
    Allocation,
    Launch,
    Owner,
    Span,
)

_NAMES = (
    (NORM, re.compile(r"(?<!vector_)(?<!foreach_)norm|_plain|relu|tanh|sigmoid|softplus|dropout|_pad|bn_[fb]w", re.I)),
    (CONVOLUTION, re.compile(r"conv(?!ert)|xmma|gemm|nvjet|cudnn|winograd|[wd]grad|_thin", re.I)),
    (
        MOVEMENT,
        re.compile(r"copy|clone|contiguous|::cat|::to$|fill|zero|memcpy|memset|empty|index|gather|repeat|flip", re.I),
    ),
    (UPDATE, re.compile(r"adam|multi_tensor_apply", re.I)),
    (COMPILED, re.compile(r"triton|compiled|cpp_fused", re.I)),
)
_ENGINE = "autograd::engine::evaluate_function"
_LAUNCH = {"cuda_runtime", "cuda_driver"}


@dataclass(eq=False)
class Call:
    """An event on the host; `inside` is the operator that called it."""

    name: str
    start: float
    end: float
    operator: bool
    place: Owner
    group: str
    inside: Call | None
    children: list[Span] = field(default_factory=list)

    def spans(self) -> tuple[Span, ...]:
        """Its own time, without the operators inside it: at least one span, which may be empty."""
        own, at = [], self.start
        for start, end in self.children:
            own.append((at, start))
            at = max(at, end)
        own.append((at, self.end))
        return tuple(span for span in own if span[1] > span[0]) or ((self.start, self.start),)


class Host:
    """The host's `events`, nested for each thread, with their places.

    `steps`, `phases` (with names), `updates` and `loading` are time ranges. `operators` are in order of time.
    `launches` are by correlation id, each with the place and group of the operator that made it.
    """

    def __init__(self, events: list[Mapping[str, Any]], *, phases: Sequence[str], networks: Sequence[str]):
        self._networks = set(networks)
        self.steps: list[Span] = []
        self.phases: list[tuple[str, Span]] = []
        self.updates: list[Span] = []
        self.loading: list[Span] = []
        self._read_ranges(events, set(phases))
        self.operators: list[Call] = []
        self.launches: dict[int, tuple[Launch, Owner, str]] = {}
        self.allocations: list[Allocation] = []
        self._owners: dict[int, str] = {}
        self._last: dict[Any, str] = {}
        self._nest(events)

    def _read_ranges(self, events: list[Mapping[str, Any]], phases: set[str]) -> None:
        for event in sorted((e for e in events if e.get("cat") == "user_annotation"), key=start_of):
            name, span = event["name"], (float(event["ts"]), float(event["ts"]) + float(event["dur"]))
            if name == STEP:
                self.steps.append(span)
            elif name in phases:
                self.phases.append((name, span))
            elif name == LOADER:
                self.loading.append(span)
            elif name.startswith("Optimizer.step"):
                self.updates.append(span)

    def _phase(self, time: float) -> str:
        return next((name for name, (start, end) in self.phases if start <= time <= end), "")

    def _nest(self, events: list[Mapping[str, Any]]) -> None:
        stacks: dict[Any, list[Call]] = {}
        for event in sorted(events, key=lambda e: (start_of(e), -float(e.get("dur", 0)))):
            stack = stacks.setdefault(event.get("tid"), [])
            start = start_of(event)
            while stack and stack[-1].end <= start:
                stack.pop()
            above = stack[-1] if stack else None
            if event["ph"] == "i":
                self._remember_memory(event, above)
            elif event.get("cat") in _LAUNCH:
                self._remember_launch(event, above)
            elif event.get("cat") in ("cpu_op", "user_annotation"):
                call = self._call(event, above)
                stack.append(call)
                if call.operator:
                    self.operators.append(call)
                    if call.inside is not None:
                        call.inside.children.append((call.start, call.end))

    def _call(self, event: Mapping[str, Any], above: Call | None) -> Call:
        name, start = str(event["name"]), start_of(event)
        end = start + float(event["dur"])
        if above is not None:
            end = min(end, above.end)
        operator = event["cat"] == "cpu_op" and not name.startswith(_ENGINE)
        place = self._place(event, name, above)
        group = UPDATE if place.way == "update" else group_of(name) or (above.group if above is not None else "")
        inside = above if above is None or above.operator else above.inside
        return Call(name, start, end, operator, place, group, inside)

    def _place(self, event: Mapping[str, Any], name: str, above: Call | None) -> Owner:
        if above is not None:
            place = above.place
        else:
            phase = self._phase(start_of(event))
            place = Owner(phase, LOSSES if phase else REST, "forward" if phase else "")
        if event["cat"] == "user_annotation":
            return self._of_range(event, name, place)
        number, thread = int(event.get("args", {}).get("Sequence number", -1)), event.get("tid")
        if name.startswith(_ENGINE):
            network = self._owners.get(number, self._last.get(thread, LOSSES))
            self._last[thread] = network
            return Owner(place.phase, network, "backward")
        if number >= 0 and place.way == "forward":
            self._owners[number] = place.network  # several operators may share a number: autograd recorded the last one
        return place

    def _of_range(self, event: Mapping[str, Any], name: str, place: Owner) -> Owner:
        if name in self._networks:
            return Owner(place.phase, name, "forward" if place.way in ("", "forward") else place.way)
        if name == LOADER:
            return Owner("", LOADER, "")
        if name.startswith("Optimizer."):
            return Owner(place.phase, OPTIMIZER, "update")
        phase = self._phase(start_of(event))
        return place if place.phase == phase else Owner(phase, LOSSES if phase else REST, "forward" if phase else "")

    def _remember_launch(self, event: Mapping[str, Any], above: Call | None) -> None:
        correlation = event.get("args", {}).get("correlation")
        if correlation is not None:
            launch = Launch(start_of(event), float(event["dur"]))
            place = above.place if above is not None else Owner(self._phase(launch.start), REST, "")
            self.launches[int(correlation)] = (launch, place, above.group if above is not None else "")

    def _remember_memory(self, event: Mapping[str, Any], above: Call | None) -> None:
        args = event.get("args", {})
        if event["name"] != "[memory]" or "Bytes" not in args:
            return
        time = start_of(event)
        place = above.place if above is not None else Owner(self._phase(time), REST, "")
        self.allocations.append(
            Allocation(
                time=time,
                address=int(args["Addr"]),
                size=int(args["Bytes"]),
                place=place,
                on_device=int(args.get("Device Type", 0)) != 0,
            )
        )


def start_of(event: Mapping[str, Any]) -> float:
    """The start of an event, in us."""
    return float(event["ts"])


def group_of(name: str) -> str:
    """The group of an operator or kernel by its name; empty if the name tells none."""
    return next((group for group, pattern in _NAMES if pattern.search(name)), "")
