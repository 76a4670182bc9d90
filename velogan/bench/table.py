"""What was measured, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table

from velogan.bench.cases import Case
from velogan.bench.paper import render_paper

_CASE = ("network", "discriminator", "image_size", "batch_size")


def render(result: dict[str, Any]) -> Iterator[RenderableType]:
    """A table for each case, and what was left out; or the paper's table."""
    if "paper" in result:
        yield from render_paper(result)
        return
    for roof in result["roofs"]:
        case = Case(**{name: roof[name] for name in _CASE})
        rows = [row for row in result["rows"] if all(row[name] == roof[name] for name in _CASE)]
        yield _table(rows, title=f"{case.label}; roof {roof['ms']:,.1f} ms, {roof['tflops']:.3g} TFLOP/s")
    for left in result["left_out"]:
        case = Case(**{name: left[name] for name in _CASE})
        yield f"left out: {left['mode']} ({case.label}): {left['reason']}"


def _table(rows: list[dict[str, Any]], *, title: str) -> Table:
    table = Table(title=title, title_justify="left", padding=(0, 1, 0, 0), box=SIMPLE_HEAD)
    table.add_column("mode", min_width=13, overflow="fold")
    for column in ("ms/step", "ratio", "TFLOP/s", "roof", "MB", "idle", "first s", "data"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["mode"],
            f"{row['step_ms']:,.1f}",
            _shown(row["ratio_to_reference"], ".2f"),
            f"{row['tflops']:.3g}",
            f"{row['roof_share']:.0%}",
            f"{row['peak_memory_mb']:,.0f}",
            _shown(row["host_idle_share"], ".0%"),
            f"{row['first_step_s']:.1f}",
            f"{row['data_ratio']:.3f}",
        )
    return table


def _shown(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
