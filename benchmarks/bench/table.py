"""Tables of the measurements for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table

from benchmarks.bench.cases import Case
from velogan.recipes import DEFAULT

_CASE = ("network", "discriminator", "image_size", "batch_size", "method")


def render(result: dict[str, Any]) -> Iterator[RenderableType]:
    """A table for each case, then what was left out."""
    rivals = any(row["method"] != DEFAULT for row in result["rows"])
    for roofline in result["rooflines"]:
        case = Case(**{name: roofline[name] for name in _CASE})
        rows = [row for row in result["rows"] if all(row[name] == roofline[name] for name in _CASE)]
        yield _table(
            rows,
            title=f"{case.label}; roofline {roofline['ms']:,.1f} ms, {roofline['tflops']:.3g} TFLOP/s",
            rivals=rivals,
        )
        yield (
            f"roofline: its convolutions alone; its arithmetic, as fast as one large product "
            f"({result['matmul_tflops']:.3g} TFLOP/s): {roofline['arithmetic_ms']:,.1f} ms"
        )
        if roofline["rounds"] < result["rounds"]:
            yield f"{roofline['rounds']} of {result['rounds']} rounds: there was no time for more (--minutes)"
    for left in result["left_out"]:
        case = Case(**{name: left[name] for name in _CASE})
        yield f"left out: {left['mode']} ({case.label}): {left['reason']}"


def _table(rows: list[dict[str, Any]], *, title: str, rivals: bool) -> Table:
    """`rivals`: add a column with the ratio to the default method."""
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "ms/step": lambda row: f"{row['step_ms']:,.1f}",
        "ratio": lambda row: _shown(row["ratio_to_reference"], ".2f"),
        DEFAULT: lambda row: _shown(row["ratio_to_cyclegan"], ".2f"),
        "TFLOP/s": lambda row: f"{row['tflops']:.3g}",
        "roofline": lambda row: f"{row['roof_share']:.0%}",
        "MB": lambda row: f"{row['peak_memory_mb']:,.0f}",
        "idle": lambda row: _shown(row["host_idle_share"], ".0%"),
        "first s": lambda row: f"{row['first_step_s']:.1f}",
        "data": lambda row: f"{row['data_ratio']:.3f}",
    }
    if not rivals:
        del columns[DEFAULT]
    if all(row["host_idle_share"] is None for row in rows):
        del columns["idle"]
    table = Table(title=title, title_justify="left", padding=(0, 1, 0, 0), box=SIMPLE_HEAD)
    table.add_column("mode", min_width=9 if rivals else 13, overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row["mode"], *(show(row) for show in columns.values()))
    return table


def _shown(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
