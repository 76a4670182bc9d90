"""Scores as a table for the terminal, and notes about the images that were scored."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from velogan.files import join_first, pluralize
from velogan.observe.progress import printable
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
    """Render scores as a table of at most 80 columns: a section per direction, a column per translator.

    An arrow shows whether higher or lower is better; the second line of a row is half the width of the 95 % interval.
    """
    protocol, (columns, rows) = result["protocol"], group_scores(result["scores"])
    best_title = ["best"] if protocol.get("best") == SAME_AS_LAST else []
    table = Table(
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        caption=Text("\n".join(map(printable, _notes(protocol)))),
        caption_justify="left",
    )
    titles = [column_title(column).replace(" ", "\n") for column in columns]
    for title in ("score", *titles, *best_title, "unchanged\ninput", "real\npictures"):
        is_text = title == "score"
        table.add_column(title, no_wrap=not is_text, overflow="fold", justify="left" if is_text else "right")
    for title, section in groupby(rows, key=lambda row: _section_title(row.first, protocol)):
        if title:
            table.add_section()
            table.add_row(f"[bold]{escape(title)}[/bold]")
        for row in section:
            arrow = {"higher": "↑", "lower": "↓"}.get(row.first["better"], "")
            cells = [_cell(row.by_column.get(column)) for column in columns] + ["= last" for _ in best_title]
            baseline, real = (_value_text(row.first, row.first[key]) for key in ("baseline", "real"))
            table.add_row(f"{escape(display_name(row.first))} {arrow}", *cells, baseline, real)
    return table


def domain_names(protocol: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the names of source and target domain by direction; empty for a comparison of two folders."""
    data = protocol.get("data", {})
    if not {"a", "b"} <= data.keys():
        return {}
    a, b = data["a"]["name"], data["b"]["name"]
    return {"a2b": (a, b), "b2a": (b, a)}


def duplicates_warning(result: Mapping[str, Any]) -> str | None:
    """Return one line with the names of scored images that are also in the training data; None if there are none."""
    duplicates = result["protocol"].get("duplicates") or []
    if not duplicates:
        return None
    pairs = [f"{pair['test']} {'=' if pair['exact'] else '~'} {pair['train']}" for pair in duplicates]
    shown = join_first(pairs, 3)
    return f"{len(duplicates)} of the scored pictures are in the training data too (~ almost equal): {shown}"


def _notes(protocol: Mapping[str, Any]) -> list[str]:
    notes = [*_split_notes(protocol), *_unreadable_notes(protocol)]
    notes += [f"{which}: checkpoint {name}" for which, name in protocol.get("checkpoints", {}).items()]
    if protocol.get("default_checkpoint") == "best":
        notes.append("translate uses the best checkpoint, since the last one is much worse on held-out pictures")
    if isinstance(protocol.get("best"), str) and protocol["best"] != SAME_AS_LAST:
        notes.append(f"best: {protocol['best']}")
    return [
        *notes,
        f"unchanged input: {protocol['baseline']}",
        f"real pictures: {protocol['real']}",
        *([WEIGHTS_NOTE] if protocol.get("checkpoints") else []),
        "±: half the 95 % bootstrap interval over images",
    ]


def _split_notes(protocol: Mapping[str, Any]) -> list[str]:
    """Return a note for each scored split that is not test."""
    notes = {
        "validation": "held-out pictures: there are no test pictures, so training pictures that were held out are "
        "scored. The networks were not trained on them, but the best checkpoint was chosen by them.",
        "train": "training pictures: there are no others, so the scores say little about new pictures. To score test "
        "pictures: --data A B",
    }
    splits = {domain["split"] for key, domain in protocol.get("data", {}).items() if key in ("a", "b")}
    return [note for split, note in notes.items() if split in splits]


def _unreadable_notes(protocol: Mapping[str, Any]) -> list[str]:
    """Return a line per domain with pictures that could not be read."""
    notes = []
    for letter in ("a", "b"):
        domain = protocol.get("data", {}).get(letter, {})
        names = [f"{file['name']} ({file['reason']})" for file in domain.get("unreadable", ())]
        if names:
            shown = join_first(names, 3, separator="; ")
            notes.append(f"{domain['name']}: {pluralize(len(names), 'picture')} cannot be read: {shown}")
    return notes


def _section_title(score: Mapping[str, Any], protocol: Mapping[str, Any]) -> str:
    """Return the names of the domains, and the split if it is not test."""
    direction = score["direction"]
    names = domain_names(protocol).get(direction, ())
    return ", ".join(filter(None, [" → ".join(names) or direction, split_note(score)]))


def _cell(score: Mapping[str, Any] | None) -> str:
    if score is None:
        return "-"
    half_width, value = half_interval(score), _value_text(score, score["value"])
    if half_width is None:
        return value
    return f"{value}\n[dim]±{100 * half_width if value.endswith('%') else half_width:.2g}[/dim]"


def _value_text(score: Mapping[str, Any], value: float | None) -> str:
    return "-" if value is None else format_value(score, value)
