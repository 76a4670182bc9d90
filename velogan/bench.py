"""The engine's modes against each other and against the machine's roof, in one process and taking turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.table import Table

from velogan.config import Config
from velogan.engine.resolve import resolve_device
from velogan.engine.step import Step
from velogan.observe.roof import Roof, record_convolutions, synchronise
from velogan.run import build_step, decide
from velogan.session import machine

NETWORKS: dict[str, dict[str, Any]] = {
    "resnet_9": {"network": "resnet", "blocks": 9},
    "resnet_6": {"network": "resnet", "blocks": 6},
    "unet_256": {"network": "unet_256"},
    "unet_128": {"network": "unet_128"},
}
MODES: dict[str, dict[str, str]] = {
    "reference": {"mode": "reference"},
    "eager": {"kernels": "plain", "compile": "off"},
    "default": {},
}
"""eager is the default without the native kernels and without compilation."""


@dataclass
class _Contestant:
    mode: str
    step: Step
    batch: dict[str, torch.Tensor]
    seconds: list[float] = field(default_factory=list)
    number: int = 0

    def run(self) -> None:
        self.step({"train": dict(self.batch)}, number=self.number)
        self.number += 1


def bench(
    *, networks: Sequence[str], image_size: int, batch_size: int, rounds: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measures each mode on random images; ValueError for an unknown network.

    In each of `rounds` every mode runs a step in turn and the roof's convolutions are timed; figures are medians,
    ratios and shares are medians of the ratio within a round. The roof's convolutions are those of the eager mode,
    whose layers call the library's convolutions alone.
    """
    unknown = [name for name in networks if name not in NETWORKS]
    if unknown:
        raise ValueError(f"--network {unknown[0]}: there is no such network; choose from {', '.join(NETWORKS)}")
    rows: list[dict[str, Any]] = []
    roofs: list[float] = []
    for network in networks:
        config = Config().change(generator=NETWORKS[network], data={"crop_size": image_size, "batch_size": batch_size})
        measured, roof_tflops = _measure(config, rounds=rounds, say=say)
        roofs.append(roof_tflops)
        shape = {"network": network, "image_size": image_size, "batch_size": batch_size}
        rows += [{"mode": row.pop("mode"), **shape, **row} for row in measured]
    device = resolve_device("auto")
    return {"roof_tflops": roofs[0], "machine": machine(device), "rounds": rounds, "rows": rows}


def _measure(config: Config, *, rounds: int, say: Callable[[str], None]) -> tuple[list[dict[str, Any]], float]:
    contestants = [_prepare(config, mode, say=say) for mode in MODES]
    plain = next(contestant for contestant in contestants if contestant.mode == "eager")
    device = plain.batch["A"].device
    roof = Roof(record_convolutions(plain.run), device=device)
    roof_seconds: list[float] = []
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        for contestant in contestants:
            contestant.seconds.append(_time(contestant.run, device))
        roof_seconds.append(roof.seconds())
    reference = contestants[0].seconds
    rows = []
    for contestant in contestants:
        seconds = statistics.median(contestant.seconds)
        rows.append(
            {
                "mode": contestant.mode,
                "step_ms": 1000 * seconds,
                "ratio_to_reference": _ratio(reference, contestant.seconds),
                "tflops": roof.flops / seconds / 1e12,
                "roof_share": _ratio(roof_seconds, contestant.seconds),
            }
        )
    return rows, roof.flops / statistics.median(roof_seconds) / 1e12


def _prepare(config: Config, mode: str, *, say: Callable[[str], None]) -> _Contestant:
    engine, _ = decide(config.change(engine=MODES[mode]))
    config = config.model_copy(update={"engine": engine})
    torch.set_num_threads(engine.threads or 1)
    size, batch = config.data.crop_size, config.data.batch_size
    step, objective, _ = build_step(config, shape=(size, size))
    device = resolve_device(engine.device)
    torch.manual_seed(0)
    images = {name: torch.rand(batch, 3, size, size, device=device) * 2 - 1 for name in "AB"}
    made = _Contestant(mode, step, {**images, "uniform": torch.rand(objective.draws, batch, device=device)})
    say(f"warming up {mode}: {engine.precision}, {engine.layout}, kernels {engine.kernels}, compile {engine.compile}")
    for _ in range(1 if mode == "reference" and device.type == "cpu" else 3):
        made.run()
    return made


def _time(run: Callable[[], None], device: torch.device) -> float:
    synchronise(device)
    start = time.perf_counter()
    run()
    synchronise(device)
    return time.perf_counter() - start


def _ratio(over: Sequence[float], under: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def render_table(result: dict[str, Any]) -> Table:
    """The rows for a terminal: `ratio` is to the reference, `roof` the share of the convolutions' own speed."""
    table = Table(title=f"one training step; convolutions alone reach {result['roof_tflops']:.2f} TFLOP/s")
    for column in ("network", "size", "batch", "mode", "ms/step", "ratio", "TFLOP/s", "roof"):
        table.add_column(column, justify="left" if column in ("network", "mode") else "right")
    for row in result["rows"]:
        table.add_row(
            row["network"],
            str(row["image_size"]),
            str(row["batch_size"]),
            row["mode"],
            f"{row['step_ms']:.1f}",
            f"{row['ratio_to_reference']:.2f}",
            f"{row['tflops']:.3f}",
            f"{row['roof_share']:.0%}",
        )
    return table
