"""Write the result of a sweep as one self-contained HTML file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from PIL import Image

from velogan.files import pluralize, write_text
from velogan.report.page import read_asset
from velogan.report.pictures import to_data_uri
from velogan.report.run_data import read_run_data
from velogan.report.sections import format_command, text
from velogan.report.sweep_tables import (
    DIRECTIONS,
    allow_line_breaks,
    format_score,
    format_test_scores,
    metric_label,
    runs_table,
    settings_table,
    superlative,
)

MAX_NAMES = 3


def write_sweep_page(result: Mapping[str, Any], out: Path) -> Path:
    """Write the page of a sweep to `out`; return `out`.

    `result` has the contents of `sweep.json`, and also

    pictures: by setting, a dict of its best `run`, and `pairs` by direction: (input, translation), `(H, W, 3)` uint8
    """
    sections = {
        "Settings": settings_table(result),
        "Held-out images": build_image_strips(result["pictures"]),
        "Repeat the winner": format_command(result["again"]) if result["best"] else "",
        "Runs": runs_table(result),
    }
    page = Template(read_asset("sweep.html")).substitute(
        title="Sweep",
        style=read_asset("page.css"),
        head=_head(result),
        sections="\n".join(f"<section><h2>{name}</h2>{body}</section>" for name, body in sections.items() if body),
    )
    write_text(out, page)
    return out


def _head(result: Mapping[str, Any]) -> str:
    trials = result["trials"]
    counts = [f"{count} {status}" for status, count in Counter(trial["status"] for trial in trials).items()]
    clock = "images" if result["budget"].endswith("images") else "minutes, everything included"
    facts = [pluralize(len(trials), "run") + f": {', '.join(counts)}", f"each {result['budget']} (equal {clock})"]
    facts.append(result["search"])
    return f'<h1>Sweep</h1><p class="lead">{_lead(result)}</p><p class="facts">{" · ".join(map(text, facts))}</p>'


def _lead(result: Mapping[str, Any]) -> str:
    """Return the result in sentences: which setting is best, by how much, and which others may be as good."""
    verdicts = result["verdicts"]
    best = next(iter(verdicts), None)
    if best is None:
        return "No finished run has a score."
    row, others = verdicts[best], len(verdicts) - 1
    seeds = f" on average over {row['seeds']} seeds" if row["seeds"] > 1 else ""
    metric = text(metric_label(result["metric"]))
    lead = (
        f"<b>{allow_line_breaks(best)}</b> has the {superlative(result)} {metric}"
        if others
        else f"{metric} of <b>{allow_line_breaks(best)}</b>"
    )
    lead += f": {format_score(row['mean'])}{seeds}"
    if (baseline := result["unchanged_input"]) is not None:
        lead += f", of the unchanged input {format_score(baseline)}"
    lead += f". {describe_no_gain(result)} "
    if tested := format_test_scores(result, best):
        lead += f"On test images: {', '.join(tested)}. "
    near = [name for name, other in verdicts.items() if other["verdict"].startswith("within")]
    unknown = sum(other["verdict"].startswith("unknown") for other in verdicts.values())
    if near:
        names = f": {', '.join(map(allow_line_breaks, near))}" if len(near) <= MAX_NAMES else ""
        lead += f"{len(near)} of {pluralize(others, 'other')} {'is' if len(near) == 1 else 'are'} within the spread of "
        lead += f"seeds{names}."
    elif others and unknown:
        lead += "With one seed per setting, the spread of seeds is unknown."
    elif others:
        lead += "The other one differs." if others == 1 else f"All {others} others differ."
    return lead


def describe_no_gain(result: Mapping[str, Any]) -> str:
    """Return a sentence if the best setting is no closer to real images than the inputs are; else an empty string."""
    means, baseline = [row["mean"] for row in result["verdicts"].values()], result["unchanged_input"]
    if baseline is None or not means or min(means) < baseline:
        return ""
    return f"No setting is closer to real images than the unchanged input ({format_score(baseline)}): train for longer."


HELD_OUT_NOTE = "Images that none of these runs was trained on, by the best checkpoint of the best run of each setting."


def build_image_strips(pictures: Mapping[str, Mapping[str, Any]], note: str = HELD_OUT_NOTE) -> str:
    """Return `note` and, for each direction, a strip of inputs above a strip of translations for each setting."""
    cards = []
    for direction in DIRECTIONS:
        strips = {
            name: _strips(run["pairs"][direction]) for name, run in pictures.items() if run["pairs"].get(direction)
        }
        rows, last_input = "", None
        for name, (before, after) in strips.items():
            rows += (_row("input", before) if before != last_input else "") + _row(allow_line_breaks(name), after)
            last_input = before
        if rows:
            names = read_run_data(Path(pictures[next(iter(strips))]["run"])).domain_names(direction)
            cards.append(f'<div class="card"><h3>{text(" → ".join(names))}</h3><div class="wide">{rows}</div></div>')
    return f'<p class="note">{note}</p><div class="columns">{"".join(cards)}</div>' if cards else ""


def _strips(pairs: Sequence[tuple[Any, Any]]) -> tuple[str, str]:
    before, after = (
        "".join(f'<img src="{to_data_uri(Image.fromarray(image))}" alt="">' for image in images)
        for images in zip(*pairs)
    )
    return before, after


def _row(title: str, images: str) -> str:
    return f'<h4>{title}</h4><div class="strip">{images}</div>'
