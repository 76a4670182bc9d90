"""Compares ways of computing a step with each other and with the roofline, in one process and in turns."""

from __future__ import annotations

import itertools
import math
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench.cases import Case, Plan
from benchmarks.bench.contestant import Contestant
from benchmarks.bench.pictures import Feed, feed, noise
from benchmarks.bench.roofline import (
    Convolution,
    Roofline,
    flops,
    matmul_tflops,
    record_convolutions,
    total,
)
from velogan.data.sets.pair import Data
from velogan.engine.device import resolve_device, synchronise
from velogan.methods.fit import check_sizes
from velogan.observe.machine import machine
from velogan.recipes import DEFAULT

Say = Callable[[str], None]
LeaveOut = Callable[[Case, str, Exception], None]
Contestants = dict[tuple[Case, str], Contestant]


def bench(plan: Plan, *, rounds: int, print_line: Say, seconds: float = math.inf) -> dict[str, Any]:
    """Measures every way of every case of `plan`, in about so many `seconds` at most.

    A roofline has `ms`, the step's convolutions alone, on CUDA inside a graph; and `arithmetic_ms`, as long as their
    operations would take at the speed of one large product of matrices, `matmul_tflops`.

    In each of `rounds` every way of every method runs in turn, on ready pictures and on pictures of the loader, and the
    rooflines' convolutions are timed. Figures are medians over rounds; ratios and shares are medians of the ratio
    within a round. A roofline's convolutions are those of the method's eager mode, whose layers call only the library's
    convolutions.

    Where the time is short, rounds are left out first, to one, then ways and cases, the last ones first. One way is
    always measured.

    `left_out` lists what cannot run here, or had no time, with the reason. ValueError if nothing can run.
    """
    ends = time.monotonic() + seconds
    device = resolve_device("auto")
    warm_up(device)
    found: dict[str, list[dict[str, Any]]] = {"rows": [], "rooflines": [], "left_out": []}
    matmul = matmul_tflops(device)
    groups = [list(cases) for _, cases in itertools.groupby(plan, key=lambda case: case.setting)]
    with tempfile.TemporaryDirectory(prefix="velogan-bench-") as folder:
        for number, cases in enumerate(groups, start=1):
            print_line(f"{cases[0].setting} ({number} of {len(groups)})")
            group = {case: plan[case] for case in cases}
            now = time.monotonic()
            until = now + (ends - now) / (len(groups) - number + 1)
            _measure(group, rounds=rounds, until=until, folder=Path(folder), found=found, print_line=print_line)
    for roofline in found["rooflines"]:
        roofline["arithmetic_ms"] = roofline["ms"] * roofline["tflops"] / matmul
    if not found["rows"]:
        raise ValueError("nothing can be measured here: " + "; ".join(left["reason"] for left in found["left_out"]))
    head = {"roof_tflops": found["rooflines"][0]["tflops"], "matmul_tflops": matmul, "machine": machine(device)}
    return {**head, "rounds": rounds, **found}


def warm_up(device: torch.device) -> None:
    """Does the first work of a process on `device`, so that no mode's first step includes it."""
    (torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device)).sum().item()


def _measure(
    group: Plan, *, rounds: int, until: float, folder: Path, found: dict[str, list[dict[str, Any]]], print_line: Say
) -> None:
    """Adds to `found` the rows, rooflines and left-out ways of all cases of one setting, `until` the time is up."""
    device = resolve_device("auto")

    def leave_out(case: Case, way: str, error: Exception) -> None:
        reason = str(error).splitlines()[0]
        print_line(f"left out: {case.method}, {way}: {reason}")
        found["left_out"].append({"mode": way, **vars(case), "reason": reason})
        if device.type == "cuda":
            torch.cuda.empty_cache()

    config = next(iter(group)).config
    data = noise(folder, config)
    with feed(data, config, device=device) as pictures:
        now = time.monotonic()
        half = now + (until - now) / 2
        first = not found["rows"]
        contestants = dict(
            _enter(group, data, pictures, first=first, until=half, leave_out=leave_out, print_line=print_line)
        )
        calls = {case: _convolutions(case, contestants) for case in group if any(case == one for one, _ in contestants)}
        rooflines = _compete(contestants, calls, rounds=rounds, until=until, leave_out=leave_out, print_line=print_line)
        for one in contestants.values():
            one.look()
    for case, seconds in rooflines.items():
        rows = [way for other, way in contestants if other == case]
        found["rows"] += [_row(case, way, contestants, flops(calls[case]), seconds) for way in rows]
        median = statistics.median(seconds)
        tflops = flops(calls[case]) / median / 1e12
        found["rooflines"].append({**vars(case), "rounds": len(seconds), "ms": 1000 * median, "tflops": tflops})


def _enter(
    group: Plan, data: Data, pictures: Feed, *, first: bool, until: float, leave_out: LeaveOut, print_line: Say
) -> Iterator[tuple[tuple[Case, str], Contestant]]:
    """The ways that can run here, warmed up `until` the time is up; at least one where it is the `first` of all."""
    for case, ways in group.items():
        try:
            config = case.config
            check_sizes(config.method, config.spec, data.shapes(config.data))
        except ValueError as error:
            leave_out(case, "all", error)
            continue
        print_line(case.method)
        for way, engine in ways.items():
            if time.monotonic() > until and not first:
                leave_out(case, way, TimeoutError("there was no time left for it: give more --minutes"))
                continue
            try:
                one = Contestant(way, case.config, engine=engine, feed=pictures, print_line=print_line)
                one.warm_up()
                first = False
                yield (case, way), one
            except (ValueError, torch.OutOfMemoryError) as error:
                leave_out(case, way, error)


def _compete(
    contestants: Contestants,
    calls: Mapping[Case, Counter[Convolution]],
    *,
    rounds: int,
    until: float,
    leave_out: LeaveOut,
    print_line: Say,
) -> dict[Case, list[float]]:
    """Times all contestants in turns, sorted by way, `until` the time is up, but once. Returns the roofline seconds of
    each case by round.

    Convolutions that several methods use are timed once per round. A contestant that runs out of memory is removed.
    """
    roofline = Roofline(sum(calls.values(), Counter()), device=resolve_device("auto"))
    rooflines: dict[Case, list[float]] = {case: [] for case in calls}
    ways = list(dict.fromkeys(way for _, way in contestants))
    began = time.monotonic()
    for number in range(rounds):
        now = time.monotonic()
        if number and now + (now - began) / number > until:
            print_line(f"the time is up: {number} of {rounds} rounds")
            break
        print_line(f"round {number + 1} of {rounds}")
        for case, way in sorted(contestants, key=lambda entry: ways.index(entry[1])):
            try:
                contestants[case, way].take_turn(data_first=number % 2 == 1)
            except torch.OutOfMemoryError as error:
                del contestants[case, way]
                leave_out(case, way, error)
        times = roofline.times()
        for case, seconds in rooflines.items():
            seconds.append(total(calls[case], times))
    return rooflines


def _convolutions(case: Case, contestants: Contestants) -> Counter[Convolution]:
    """The convolutions of the eager step; it is built here if it is not among the contestants."""
    eager = contestants.get((case, "eager"))
    if eager is None:
        eager = Contestant("eager", case.config, engine={"mode": "eager"}, print_line=lambda line: None)
    calls = record_convolutions(eager.run)
    synchronise(eager.device)
    return calls


def _row(
    case: Case, way: str, contestants: Contestants, operations: int, roof_seconds: Sequence[float]
) -> dict[str, Any]:
    one = contestants[case, way]
    seconds = statistics.median(one.seconds)
    reference = contestants.get((case, "reference"))
    default = contestants.get((replace(case, method=DEFAULT), way))
    return {
        "mode": way,
        **vars(case),
        "step_ms": 1000 * seconds,
        "ratio_to_reference": _ratio(reference.seconds, one.seconds) if reference else None,
        "ratio_to_cyclegan": _ratio(default.seconds, one.seconds) if default else None,
        "tflops": operations / seconds / 1e12,
        "roof_share": _ratio(roof_seconds, one.seconds),
        "peak_memory_mb": one.peak_memory_mb,
        "host_idle_share": one.host_idle_share(seconds),
        "first_step_s": one.first_step_s,
        "data_step_ms": 1000 * statistics.median(one.data_seconds),
        "data_ratio": _ratio(one.data_seconds, one.seconds),
        "where": one.where(),
    }


def _ratio(over: Sequence[float], under: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(over, under, strict=True))
