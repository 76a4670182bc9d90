"""The engine's modes against each other and against the machine's roof, in one process and taking turns."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from velogan.bench.cases import Case, Plan
from velogan.bench.contestant import Contestant
from velogan.bench.pictures import feed, noise
from velogan.domains import check_sizes
from velogan.engine.resolve import resolve_device
from velogan.observe.roof import Roof, matmul_tflops, record_convolutions, synchronise
from velogan.session import machine

Say = Callable[[str], None]


def bench(plan: Plan, *, rounds: int, say: Say) -> dict[str, Any]:
    """Measures every way of every case of `plan`.

    In each of `rounds` every way runs in turn, on random numbers and on pictures from the loader, and the roof's
    convolutions are timed; figures are medians, ratios and shares are medians of the ratio within a round. The
    roof's convolutions are those of the eager mode, whose layers call the library's convolutions alone.

    What cannot run here is in `left_out`, with its reason. ValueError where nothing can.
    """
    device = resolve_device("auto")
    warm_up(device)
    found: dict[str, list[dict[str, Any]]] = {"rows": [], "roofs": [], "left_out": []}
    matmul = matmul_tflops(device)
    with tempfile.TemporaryDirectory(prefix="velogan-bench-") as folder:
        for number, case in enumerate(plan.cases, start=1):
            say(f"{case.label} ({number} of {len(plan.cases)})")
            _measure(case, plan, rounds=rounds, folder=Path(folder), found=found, say=say)
    if not found["rows"]:
        raise ValueError("nothing can be measured here: " + "; ".join(left["reason"] for left in found["left_out"]))
    head = {"roof_tflops": found["roofs"][0]["tflops"], "matmul_tflops": matmul, "machine": machine(device)}
    return {**head, "rounds": rounds, **found}


def warm_up(device: torch.device) -> None:
    """Pays for what a process needs once, so that no mode's first step does."""
    (torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device)).sum().item()


def _measure(
    case: Case, plan: Plan, *, rounds: int, folder: Path, found: dict[str, list[dict[str, Any]]], say: Say
) -> None:
    """Adds the rows, the roof and what is left out of one case to `found`."""
    device = resolve_device("auto")
    config = case.config

    def leave_out(way: str, error: Exception) -> None:
        reason = str(error).splitlines()[0]
        say(f"left out: {way}: {reason}")
        found["left_out"].append({"mode": way, **vars(case), "reason": reason})
        if device.type == "cuda":
            torch.cuda.empty_cache()

    data = noise(folder, config)
    try:
        check_sizes(config, data)
    except ValueError as error:
        leave_out("all", error)
        return
    with closing(feed(data, config, device=device)) as batches:
        contestants: list[Contestant] = []
        for way, engine in plan.ways.items():
            try:
                one = Contestant(way, config, engine=engine, batches=batches, say=say)
                one.warm_up()
                contestants.append(one)
            except (ValueError, torch.OutOfMemoryError) as error:
                leave_out(way, error)
        roof = Roof(_convolutions(case, contestants, say), device=device)
        roof_seconds: list[float] = []
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for contestant in list(contestants):
                try:
                    contestant.take_turn(data_first=number % 2 == 1)
                except torch.OutOfMemoryError as error:
                    contestants.remove(contestant)
                    leave_out(contestant.name, error)
            roof_seconds.append(roof.seconds())
        for contestant in contestants:
            contestant.look()
    found["rows"] += [_row(case, one, contestants, roof, roof_seconds) for one in contestants]
    seconds = statistics.median(roof_seconds)
    found["roofs"].append({**vars(case), "ms": 1000 * seconds, "tflops": roof.flops / seconds / 1e12})


def _convolutions(case: Case, contestants: Iterable[Contestant], say: Say) -> Any:
    """The convolutions of the eager step: of the one that takes part, or of one built for this."""
    eager = next((one for one in contestants if one.name == "eager"), None)
    if eager is None:
        eager = Contestant("eager", case.config, engine={"mode": "eager"}, batches=iter(()), say=lambda line: None)
    calls = record_convolutions(eager.run)
    synchronise(eager.device)
    return calls


def _row(
    case: Case, one: Contestant, contestants: Sequence[Contestant], roof: Roof, roof_seconds: Sequence[float]
) -> dict[str, Any]:
    seconds = statistics.median(one.seconds)
    reference = next((other.seconds for other in contestants if other.name == "reference"), None)
    return {
        "mode": one.name,
        **vars(case),
        "step_ms": 1000 * seconds,
        "ratio_to_reference": _ratio(reference, one.seconds) if reference else None,
        "tflops": roof.flops / seconds / 1e12,
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
