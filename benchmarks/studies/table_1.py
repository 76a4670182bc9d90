"""The generators' forward pass, compared with Table 1 of "Cycling Faster Through CycleGAN" (La, Ellay, Rathbun).

    python -m benchmarks.studies.table_1 [ROUNDS]

Times the forward passes of both cycles alternately, on one stream and on a CUDA stream each: batch 16 on CUDA, 1
elsewhere. Prints the paper's table with medians over rounds beside it.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.bench.candidate import BenchCandidate
from benchmarks.bench.cases import Case
from benchmarks.bench.measure import warm_up
from velogan.engine.capture import CapturedStep
from velogan.engine.device import resolve_device
from velogan.engine.step import Step
from velogan.objectives.base import run_branches, use_branch_runner

TABLE_1 = {"resnet_9": {"baseline": 734.42, "streams": 809.28}, "unet_256": {"baseline": 150.90, "streams": 175.50}}
"""The paper's milliseconds at batch 16 on an A100: the reference implementation, and its two cycles on two streams. The
paper's discriminator is basic; a forward pass of the generators does not call it."""

MODES = {
    "reference": {"mode": "reference"},
    "fast": {"mode": "eager"},
    "streams": {"mode": "streams", "kernels": "plain", "compile": "off"},
}
CPU_MODES = {"reference": {"mode": "reference"}, "fast": {"mode": "auto"}}


def measure(rounds: int, cases: tuple[Case, ...] | None = None) -> list[dict[str, Any]]:
    """Return a row for each generator: the paper's milliseconds, and the medians of `rounds` here."""
    device = resolve_device("auto")
    warm_up(device)
    cuda = device.type == "cuda"
    cases = cases or tuple(Case(network, "basic", 256, 16 if cuda else 1) for network in TABLE_1)
    rows = []
    for case in cases:
        modes = MODES if cuda else CPU_MODES
        candidates = {
            name: BenchCandidate(name, case.config, engine=engine, print_line=print) for name, engine in modes.items()
        }
        seconds: dict[str, list[float]] = {name: [] for name in candidates}
        for number in range(rounds + 1):
            for name, candidate in candidates.items():
                elapsed = candidate.timed(forward_of(candidate))
                if number:  # the first round warms up
                    seconds[name].append(elapsed)
        paper = {f"paper_{name}_ms": value for name, value in TABLE_1[case.network].items()}
        here = {f"{name}_ms": 1000 * statistics.median(values) for name, values in seconds.items()}
        rows.append({**vars(case), **paper, "streams_ms": None, **here})
    return rows


def forward_of(candidate: BenchCandidate) -> Callable[[], None]:
    """Return a function that runs both cycles of the paper's section 4 and keeps all that a backward pass needs."""
    step = candidate.step.step if isinstance(candidate.step, CapturedStep) else candidate.step
    assert isinstance(step, Step)
    g_a, g_b, batch = step.forward_nets["G_A"], step.forward_nets["G_B"], step.to_memory_format(candidate.batch)
    a, b = batch["A"], batch["B"]
    dtype = step.options.autocast
    autocast = torch.autocast(candidate.device.type, dtype=dtype, enabled=dtype is not None)

    def run() -> None:
        with autocast, use_branch_runner(step.options.branch_runner):
            run_branches(lambda: (g_b(g_a(a)),), lambda: (g_a(g_b(b)),))

    return run


def table(rows: list[dict[str, Any]]) -> Table:
    """Return the paper's table with columns of our times."""
    title = "generators' forward pass, ms; paper: batch 16 on one A100"
    shown = Table(title=title, title_justify="left", padding=(0, 1, 0, 0), box=SIMPLE_HEAD)
    for column in ("generator", "batch", "paper", "paper, streams", "reference", "fast", "streams"):
        shown.add_column(column, justify="left" if column == "generator" else "right", no_wrap=True)
    for row in rows:
        names = ("paper_baseline_ms", "paper_streams_ms", "reference_ms", "fast_ms", "streams_ms")
        values = ("–" if row[name] is None else f"{row[name]:,.2f}" for name in names)
        shown.add_row(row["network"], str(row["batch_size"]), *values)
    return shown


if __name__ == "__main__":
    Console().print(table(measure(int(sys.argv[1]) if sys.argv[1:] else 3)))
