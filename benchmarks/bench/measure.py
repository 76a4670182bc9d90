"""Compare modes of a step with each other and with the roofline, alternately in one process."""

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

from benchmarks.bench.candidate import BenchCandidate
from benchmarks.bench.cases import Case, Plan
from benchmarks.bench.pictures import Feed, feed, noise
from benchmarks.bench.roofline import (
    Convolution,
    Roofline,
    flops,
    matmul_tflops,
    record_convolutions,
    total,
)
from velogan.config import fit_to_data
from velogan.data.sets.pair import TrainingData
from velogan.engine.device import resolve_device, synchronise
from velogan.observe.machine import describe_machine
from velogan.recipes import DEFAULT

PrintLine = Callable[[str], None]
LeaveOut = Callable[[Case, str, Exception], None]
Candidates = dict[tuple[Case, str], BenchCandidate]


def bench(plan: Plan, *, rounds: int, print_line: PrintLine, seconds: float = math.inf) -> dict[str, Any]:
    """Measure every mode of every case of `plan`, in about `seconds` at most.

    A roofline has `ms`, the step's convolutions alone, on CUDA inside a graph; and `arithmetic_ms`, as long as their
    operations would take at the speed of one large product of matrices, `matmul_tflops`.

    In each of `rounds` every mode of every method runs on prepared images and on images of the loader, and the
    rooflines' convolutions are timed. Figures are medians over rounds; ratios and shares are medians of the ratio
    within a round. A roofline's convolutions are those of the method's eager mode, whose layers call only the library's
    convolutions.

    If the time is short, rounds are left out first, down to one, then modes and cases, the last ones first. One mode is
    always measured. `left_out` lists, with the reason, all that cannot run here or had no time. Raises ValueError if
    nothing can run.
    """
    deadline = time.monotonic() + seconds
    device = resolve_device("auto")
    warm_up(device)
    results: dict[str, list[dict[str, Any]]] = {"rows": [], "rooflines": [], "left_out": []}
    matmul = matmul_tflops(device)
    groups = [list(cases) for _, cases in itertools.groupby(plan, key=lambda case: case.setting)]
    with tempfile.TemporaryDirectory(prefix="velogan-bench-") as folder:
        for number, cases in enumerate(groups, start=1):
            print_line(f"{cases[0].setting} ({number} of {len(groups)})")
            group = {case: plan[case] for case in cases}
            now = time.monotonic()
            until = now + (deadline - now) / (len(groups) - number + 1)
            _measure(group, rounds=rounds, until=until, folder=Path(folder), results=results, print_line=print_line)
    for roofline in results["rooflines"]:
        roofline["arithmetic_ms"] = roofline["ms"] * roofline["tflops"] / matmul
    if not results["rows"]:
        raise ValueError("nothing can be measured here: " + "; ".join(left["reason"] for left in results["left_out"]))
    head = {"roof_tflops": results["rooflines"][0]["tflops"], "matmul_tflops": matmul}
    return {**head, "machine": describe_machine(device), "rounds": rounds, **results}


def warm_up(device: torch.device) -> None:
    """Do the first work of a process on `device`, so that no mode's first step includes it."""
    (torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device)).sum().item()


def _measure(
    group: Plan,
    *,
    rounds: int,
    until: float,
    folder: Path,
    results: dict[str, list[dict[str, Any]]],
    print_line: PrintLine,
) -> None:
    """Add to `results` the rows, rooflines and left-out modes of all cases of one setting, `until` the time is up."""
    device = resolve_device("auto")

    def leave_out(case: Case, mode: str, error: Exception) -> None:
        reason = str(error).splitlines()[0]
        print_line(f"left out: {case.method}, {mode}: {reason}")
        results["left_out"].append({"mode": mode, **vars(case), "reason": reason})
        if device.type == "cuda":
            torch.cuda.empty_cache()

    config = next(iter(group)).config
    data = noise(folder, config)
    with feed(data, config, device=device) as pictures:
        now = time.monotonic()
        half = now + (until - now) / 2
        first = not results["rows"]
        candidates = dict(
            _build_candidates(
                group, data, pictures, first=first, until=half, leave_out=leave_out, print_line=print_line
            )
        )
        calls = {
            case: _convolutions(case, candidates) for case in group if any(case == other for other, _ in candidates)
        }
        rooflines = _time_candidates(
            candidates, calls, rounds=rounds, until=until, leave_out=leave_out, print_line=print_line
        )
        for candidate in candidates.values():
            candidate.profile_step()
    for case, seconds in rooflines.items():
        rows = [mode for other, mode in candidates if other == case]
        results["rows"] += [_row(case, mode, candidates, flops(calls[case]), seconds) for mode in rows]
        median = statistics.median(seconds)
        tflops = flops(calls[case]) / median / 1e12
        results["rooflines"].append({**vars(case), "rounds": len(seconds), "ms": 1000 * median, "tflops": tflops})


def _build_candidates(
    group: Plan,
    data: TrainingData,
    pictures: Feed,
    *,
    first: bool,
    until: float,
    leave_out: LeaveOut,
    print_line: PrintLine,
) -> Iterator[tuple[tuple[Case, str], BenchCandidate]]:
    """Build and warm up the candidates that run here `until` the time is up; at least one for the `first` case."""
    for case, modes in group.items():
        try:
            config = case.config
            fit_to_data(config, data.channels, data.crop_shapes(config.data))
        except ValueError as error:
            leave_out(case, "all", error)
            continue
        print_line(case.method)
        for mode, engine in modes.items():
            if time.monotonic() > until and not first:
                leave_out(case, mode, TimeoutError("there was no time left for it: give more --minutes"))
                continue
            try:
                candidate = BenchCandidate(mode, case.config, engine=engine, feed=pictures, print_line=print_line)
                candidate.warm_up()
                first = False
                yield (case, mode), candidate
            except (ValueError, torch.OutOfMemoryError) as error:
                leave_out(case, mode, error)


def _time_candidates(
    candidates: Candidates,
    calls: Mapping[Case, Counter[Convolution]],
    *,
    rounds: int,
    until: float,
    leave_out: LeaveOut,
    print_line: PrintLine,
) -> dict[Case, list[float]]:
    """Time all candidates alternately `until` the time is up, at least once; return roofline seconds by case and round.

    Convolutions that several methods use are timed once per round. A candidate that runs out of memory is removed.
    """
    roofline = Roofline(sum(calls.values(), Counter()), device=resolve_device("auto"))
    rooflines: dict[Case, list[float]] = {case: [] for case in calls}
    modes = list(dict.fromkeys(mode for _, mode in candidates))
    started_at = time.monotonic()
    for number in range(rounds):
        now = time.monotonic()
        if number and now + (now - started_at) / number > until:
            print_line(f"the time is up: {number} of {rounds} rounds")
            break
        print_line(f"round {number + 1} of {rounds}")
        for case, mode in sorted(candidates, key=lambda entry: modes.index(entry[1])):
            try:
                candidates[case, mode].time_once(data_first=number % 2 == 1)
            except torch.OutOfMemoryError as error:
                del candidates[case, mode]
                leave_out(case, mode, error)
        times = roofline.times()
        for case, seconds in rooflines.items():
            seconds.append(total(calls[case], times))
    return rooflines


def _convolutions(case: Case, candidates: Candidates) -> Counter[Convolution]:
    """Return the convolutions of the eager step, which is built here if it is not among the candidates."""
    eager = candidates.get((case, "eager"))
    if eager is None:
        eager = BenchCandidate("eager", case.config, engine={"mode": "eager"}, print_line=lambda line: None)
    calls = record_convolutions(eager.run)
    synchronise(eager.device)
    return calls


def _row(
    case: Case, mode: str, candidates: Candidates, operations: int, roof_seconds: Sequence[float]
) -> dict[str, Any]:
    candidate = candidates[case, mode]
    seconds = statistics.median(candidate.seconds)
    reference = candidates.get((case, "reference"))
    default = candidates.get((replace(case, method=DEFAULT), mode))
    return {
        "mode": mode,
        **vars(case),
        "step_ms": 1000 * seconds,
        "ratio_to_reference": _ratio(reference.seconds, candidate.seconds) if reference else None,
        "ratio_to_cyclegan": _ratio(default.seconds, candidate.seconds) if default else None,
        "tflops": operations / seconds / 1e12,
        "roof_share": _ratio(roof_seconds, candidate.seconds),
        "peak_memory_mb": candidate.peak_memory_mb,
        "host_idle_share": candidate.host_idle_share(seconds),
        "first_step_s": candidate.first_step_s,
        "data_step_ms": 1000 * statistics.median(candidate.data_seconds),
        "data_ratio": _ratio(candidate.data_seconds, candidate.seconds),
        "where": candidate.where(),
    }


def _ratio(over: Sequence[float], under: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(over, under, strict=True))
