"""Scores as a table for the terminal, and lines on the pictures that were scored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from velogan.report.scores import SAME, deviation, grouped, heading, split_of


def render_table(result: Mapping[str, Any]) -> Table:
    """The scores as a table: a row for each figure and direction, a column for each translator.

    An arrow shows which way is better; the second line of a row is half the width of the 95 % interval.
    """
    protocol, (columns, rows) = result["protocol"], grouped(result["scores"])
    same = ["best"] if protocol.get("best") == SAME else []
    table = Table(caption="\n".join(_notes(protocol)), caption_justify="left")
    for title in ("score", "", "real against\nreal", *map(heading, columns), *same, "doing\nnothing"):
        left = title in ("score", "")
        # in a narrow terminal names are folded, figures never cut
        table.add_column(title, no_wrap=title != "score", overflow="fold", justify="left" if left else "right")
    for row in rows:
        arrow = {"higher": "↑", "lower": "↓"}[row.first["better"]]
        cells = [_cell(row.by_column.get(column)) for column in columns] + ["= last" for _ in same]
        real, baseline = (_number(row.first[key]) for key in ("real", "baseline"))
        table.add_row(f"{row.first['name']} {arrow}", _way(row.first), real, *cells, baseline)
    return table


def duplicates_line(result: Mapping[str, Any]) -> str | None:
    """One line that names scored pictures that training has seen too; None if there are none."""
    found = result["protocol"].get("duplicates") or []
    if not found:
        return None
    shown = ", ".join(f"{one['test']} {'=' if one['exact'] else '~'} {one['train']}" for one in found[:3])
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"{len(found)} of the scored pictures are in the training data too (~ almost equal): {shown}{more}"


def _notes(protocol: Mapping[str, Any]) -> list[str]:
    notes = _on_which(protocol)
    notes += [f"{which}: checkpoint {name}" for which, name in protocol.get("checkpoints", {}).items()]
    if isinstance(protocol.get("best"), str) and protocol["best"] != SAME:
        notes.append(f"best: {protocol['best']}")
    return [
        *notes,
        f"real against real: {protocol['real']}",
        f"doing nothing: {protocol['baseline']}",
        "±: 95 % of resampled sets of images",
    ]


def _on_which(protocol: Mapping[str, Any]) -> list[str]:
    """What the reader must know if the scored pictures are no test pictures."""
    said = {
        "validation": "held-out pictures: there are no test pictures, so training pictures that were held out are "
        "scored. The networks have not seen them; the best checkpoint was chosen by them.",
        "train": "training pictures: there are no others, so the figures say little about new pictures. Name test "
        "pictures: --data A B",
    }
    splits = {side["split"] for key, side in protocol.get("data", {}).items() if key in ("a", "b")}
    return [text for split, text in said.items() if split in splits]


def _way(score: Mapping[str, Any]) -> str:
    """The direction, and which pictures were scored if they are no test pictures."""
    return "\n".join(filter(None, [score["direction"], split_of(score).replace(" ", "\n")]))


def _cell(score: Mapping[str, Any] | None) -> str:
    half = None if score is None else deviation(score)
    value = _number(None if score is None else score["value"])
    return value if half is None else f"{value}\n[dim]±{half:.2g}[/dim]"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
