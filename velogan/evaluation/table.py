"""Scores as a table for the terminal, and lines on the pictures that were scored."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from velogan.report.scores import (
    SAME_AS_LAST,
    WEIGHTS_NOTE,
    column_title,
    display_name,
    format_value,
    group_scores,
    half_interval,
    split_note,
)


def render_table(result: Mapping[str, Any]) -> Table:
    """The scores as a table of at most 80 columns: a part for each direction, a column for each translator.

    An arrow shows which way is better; the second line of a row is half the width of the 95 % interval.
    """
    protocol, (columns, rows) = result["protocol"], group_scores(result["scores"])
    same = ["best"] if protocol.get("best") == SAME_AS_LAST else []
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption="\n".join(_notes(protocol)), caption_justify="left")
    titles = [column_title(column).replace(" ", "\n") for column in columns]
    for title in ("score", *titles, *same, "doing\nnothing", "real\npictures"):
        left = title == "score"
        table.add_column(title, no_wrap=not left, overflow="fold", justify="left" if left else "right")
    for way, of_way in groupby(rows, key=lambda row: _way(row.first, protocol)):
        if way:
            table.add_section()
            table.add_row(f"[bold]{escape(way)}[/bold]")
        for row in of_way:
            arrow = {"higher": "↑", "lower": "↓"}.get(row.first["better"], "")
            cells = [_cell(row.by_column.get(column)) for column in columns] + ["= last" for _ in same]
            nothing, real = (_value(row.first, row.first[key]) for key in ("baseline", "real"))
            table.add_row(f"{escape(display_name(row.first))} {arrow}", *cells, nothing, real)
    return table


def domains(protocol: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The domains that each direction leads from and to; empty for two folders of pictures."""
    data = protocol.get("data", {})
    if not {"a", "b"} <= data.keys():
        return {}
    a, b = data["a"]["name"], data["b"]["name"]
    return {"a2b": (a, b), "b2a": (b, a)}


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
    if protocol.get("taken") == "best":
        notes.append("translate takes the best checkpoint, since by held-out pictures the last one is much worse")
    if isinstance(protocol.get("best"), str) and protocol["best"] != SAME_AS_LAST:
        notes.append(f"best: {protocol['best']}")
    return [
        *notes,
        f"doing nothing: {protocol['baseline']}",
        f"real pictures: {protocol['real']}",
        *([WEIGHTS_NOTE] if protocol.get("checkpoints") else []),
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


def _way(score: Mapping[str, Any], protocol: Mapping[str, Any]) -> str:
    """The direction, and which pictures were scored if they are no test pictures."""
    way = score["direction"]
    ends = domains(protocol).get(way, ())
    return ", ".join(filter(None, [" → ".join(ends) or way, split_note(score)]))


def _cell(score: Mapping[str, Any] | None) -> str:
    if score is None:
        return "-"
    half, value = half_interval(score), _value(score, score["value"])
    return value if half is None else f"{value}\n[dim]±{100 * half if value.endswith('%') else half:.2g}[/dim]"


def _value(score: Mapping[str, Any], value: float | None) -> str:
    return "-" if value is None else format_value(score, value)
