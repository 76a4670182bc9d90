"""Build the sections of a report as HTML. Everything that comes from a file is escaped here."""

from __future__ import annotations

import html
import json
import re
import statistics
from collections.abc import Mapping
from typing import Any

from velogan.files import format_brief_duration, format_duration, pluralize
from velogan.report import scores
from velogan.report.failures import find_failures
from velogan.report.pictures import latest_pairs
from velogan.report.run_data import RunData, as_list, as_mapping, flatten, is_number
from velogan.report.verdict import capitalize, summarize_run

ARROW = " → "


def text(value: Any) -> str:
    """Return `value` as escaped HTML text, safe in attributes too."""
    return html.escape(str(value), quote=True)


def make_title(runs: list[RunData]) -> str:
    """Return the headline, not escaped: "Apples become oranges"."""
    if len(runs) > 1:
        return f"{len(runs)} runs compared"
    source, target = runs[0].domain_names("a2b")
    verb = "become" if source.endswith("s") else "becomes"
    return f"{capitalize(source)} {verb} {target}"


def build_head(runs: list[RunData]) -> str:
    """Return the headline, results in sentences and facts; for a single run also its newest pairs and failures."""
    if len(runs) > 1:
        items = "".join(
            f"<li>{make_dot(number)}<b>{text(run.name)}</b> "
            f'{text(" ".join(summarize_run(run)[:3]))}<br><span class="facts">{_describe_run(run)}</span></li>'
            for number, run in enumerate(runs)
        )
        return f'<h1>{text(make_title(runs))}</h1><ul class="runs">{items}</ul>'
    run = runs[0]
    pairs = "".join(
        f'<figure><img src="{before}" alt="before"><img src="{after}" alt="after"></figure>'
        for before, after in latest_pairs(run)
    )
    strip = f'<div class="pairs">{pairs}</div>' if pairs else ""
    first, *others = summarize_run(run)
    lead = f'<p class="lead">{text(first)}</p>'
    if others:
        unbroken = [re.sub(r"--[\w.-]*\w", r'<code class="token">\g<0></code>', text(sentence)) for sentence in others]
        items = "".join(f"<li>{sentence}</li>" for sentence in unbroken)
        lead += f'<ul class="verdict">{items}</ul>'
    best = f'<p class="facts">{text(note)}</p>' if (note := scores.describe_best_checkpoint(run)) else ""
    best += list_failures(run)
    return f'<h1>{text(make_title(runs))}</h1>{lead}<p class="facts">{_describe_run(run)}</p>{best}{strip}'


def list_failures(run: RunData) -> str:
    """Return an HTML list of the failures in a run's log (what, since when, what to try); empty if there are none."""
    items = "".join(
        f"<li><b>{text(capitalize(failure.description))}</b>, since {pluralize(failure.since, 'image')}. "
        f"<span>Try: {text(failure.hint)}.</span></li>"
        for failure in find_failures(run.stats)
    )
    return f'<ul class="warnings" role="status">{items}</ul>' if items else ""


def _describe_run(run: RunData) -> str:
    seconds, machine = run.last_value("seconds"), as_mapping(run.run_json.get("machine"))
    counts = [
        f"{count['train']:,} {run.domain_name(domain)}"
        for domain in "ab"
        if is_number((count := as_mapping(as_mapping(run.run_json.get("data")).get(domain))).get("train"))
    ]
    parts = [
        run.run_json.get("preset"),
        f"{pluralize(run.images_seen, 'image')} seen" if run.images_seen else None,
        f"{format_duration(seconds)} of training" if seconds else None,
        f"data: {' and '.join(counts)}" if counts else None,
        pluralize(machine["cores"], "core") if is_number(machine.get("cores")) else None,
        machine.get("device"),
        str(run.run_json.get("started") or "")[:16].replace("T", " "),
        f"velogan {run.run_json['velogan']}" if run.run_json.get("velogan") else None,
    ]
    return " · ".join(text(part) for part in parts if part)


def build_scores(runs: list[RunData]) -> str:
    """Return the section on scores: value, bar and description of each score of all runs."""
    groups: dict[tuple[str, str], list[tuple[int, RunData, dict[str, Any]]]] = {}
    for number, run in enumerate(runs):
        for row in scores.group_scores(run.scores)[1]:
            score = dict(row.first)
            key = (str(score.get("direction", "")), str(score.get("name", "")))
            groups.setdefault(key, []).append((number, run, score))
    if not groups:
        return ""
    cards = []
    for direction in dict.fromkeys(direction for direction, _ in groups):
        blocks = [
            _render_score(group, len(runs) > 1)
            for (group_direction, _), group in groups.items()
            if group_direction == direction
        ]
        names = (
            {ARROW.join(run.domain_names(direction)) for run in runs} if direction in ("a2b", "b2a") else {direction}
        )
        heading = names.pop() if len(names) == 1 else ARROW.join(("A", "B") if direction == "a2b" else ("B", "A"))
        cards.append(f'<div class="card"><h3>{text(capitalize(heading))}</h3>{"".join(blocks)}</div>')
    legend = (
        '<p class="note">Right is better. <span class="mark value"></span> translations, '
        '<span class="mark baseline"></span> the unchanged input, '
        '<span class="mark real"></span> real images against other real ones.</p>'
    )
    table = _render_score_table(runs[0]) if len(runs) == 1 else ""
    return _section("Scores", legend + f'<div class="columns">{"".join(cards)}</div>' + table + _render_protocols(runs))


def _render_score_table(run: RunData) -> str:
    """Return a table of all scores by checkpoint and weights, with intervals, the unchanged input and real images."""
    columns, rows = scores.group_scores(run.scores)
    last_is_best = ["= last"] if run.protocol.get("best") == scores.SAME_AS_LAST else []
    titles = ["", "", *map(scores.column_title, columns), *(["best"] if last_is_best else [])]
    titles += ["unchanged input", "real against real"]
    lines = []
    for row in rows:
        direction = row.first.get("direction")
        domains = ARROW.join(run.domain_names(direction)) if direction in ("a2b", "b2a") else ""
        first = ", ".join(filter(None, [domains, scores.split_note(row.first)]))
        cells = [_render_value(row.by_column.get(column)) for column in columns] + last_is_best
        real, baseline = (
            text(scores.format_value(row.first, row.first.get(key))) if is_number(row.first.get(key)) else "–"
            for key in ("real", "baseline")
        )
        titled = zip(titles[1:], (text(first), *cells, baseline, real))
        line = "".join(f'<td data-title="{text(title)}">{cell}</td>' for title, cell in titled)
        lines.append(f"<tr><th>{text(scores.display_name(row.first))}</th>{line}</tr>")
    head = "".join(f"<th>{text(title)}</th>" for title in titles)
    note = f"Small: the 95 % interval over resampled sets of images. {scores.WEIGHTS_NOTE}"
    note = f'<p class="note">{text(note)}</p>'
    table = f'<div class="card figures"><table><tr>{head}</tr>{"".join(lines)}</table>{note}</div>'
    return _details("Every checkpoint, with intervals", table)


def _render_value(score: Mapping[str, Any] | None) -> str:
    if score is None:
        return "–"
    interval = scores.format_interval(score)
    small = f"<small>{text(interval)}</small>" if interval else ""
    return f"<b>{text(scores.format_value(score, score['value']))}</b>{small}"


def _render_score(group: list[tuple[int, RunData, dict[str, Any]]], several_runs: bool) -> str:
    all_scores = [score for _, _, score in group]
    first, lines = all_scores[0], []
    for number, run, score in group:
        weights = scores.column_title((str(score.get("checkpoint") or ""), str(score.get("weights") or "")))
        split = f" · {scores.split_note(score)}" if scores.split_note(score) else ""
        name = make_dot(number) + text(run.name + split) if several_runs else text(weights + split)
        value = text(scores.format_value(score, score["value"]))
        lines.append(f'<div class="line"><span>{name}</span><b>{value}</b></div>')
        lines.append(_bar(scores.place_on_bar(score, all_scores), get_hue(number) if several_runs else "var(--accent)"))
    references = [
        f"{title} {scores.format_value(first, first[key])}"
        for key, title in (
            ("baseline", "unchanged input:"),
            ("real", "unrelated images:" if first.get("name") in scores.INPUT_METRICS else "real against real:"),
        )
        if is_number(first.get(key))
    ]
    # these values may differ between runs; the bars show them
    note = f" ({', '.join(references)})" if references and not several_runs else ""
    return (
        f'<div class="score"><h4>{text(scores.display_name(first))}</h4>{"".join(lines)}'
        f'<p class="note">{text(first.get("description") or "")}{text(note)}</p></div>'
    )


def _bar(bar: scores.Bar, hue: str) -> str:
    start = (bar.baseline or 0) if bar.starts_at_baseline else 0
    left, width = min(start, bar.value), abs(bar.value - start)
    css_class = "bar worse" if bar.value < start else "bar"
    positions = [("baseline", bar.baseline), ("real", bar.real), ("value", bar.value)]
    marks = [
        f'<span class="mark {kind}" style="left:{position:.1%}"></span>'
        for kind, position in positions
        if position is not None
    ]
    difference = f'<i style="left:{left:.1%};width:{width:.1%}"></i>'
    return f'<div class="{css_class}" style="--hue:{hue}">{difference}{"".join(marks)}</div>'


def _render_protocols(runs: list[RunData]) -> str:
    tables = "".join(
        (f"<h4>{text(run.name)}</h4>" if len(runs) > 1 else "") + _table(flatten(run.protocol))
        for run in runs
        if run.protocol
    )
    return _details("How it was scored", tables) if tables else ""


def build_speed(runs: list[RunData]) -> str:
    """Return the section on speed: images per second, time per step, the engine's decisions, and the machine."""
    if len(runs) == 1:
        body = _render_speed(runs[0], is_open=True)
    else:
        blocks = [(number, run.name, _render_speed(run, is_open=False)) for number, run in enumerate(runs)]
        body = "".join(f"<h3>{make_dot(number)}{text(name)}</h3>{block}" for number, name, block in blocks if block)
    return _section("Speed", body) if body else ""


def _render_speed(run: RunData, *, is_open: bool) -> str:
    second_half = run.stats[len(run.stats) // 2 :]
    medians = {
        name: statistics.median(values)
        for name in ("images_per_s", "step_ms")
        if (values := [row[name] for row in second_half if is_number(row.get(name))])
    }
    seconds = run.last_value("seconds")
    tiles = [
        (f"{medians['images_per_s']:.3g}", "images per second") if "images_per_s" in medians else None,
        (format_brief_duration(medians["step_ms"] / 1000), "per step") if "step_ms" in medians else None,
        (format_duration(seconds), "of training") if seconds else None,
        (f"{run.images_seen:,}", "images seen") if run.images_seen else None,
    ]
    numbers = "".join(f"<div><b>{text(value)}</b><span>{unit}</span></div>" for value, unit in filter(None, tiles))
    decisions = "".join(
        f"<div><dt>{text(decision.get('field', ''))}</dt><dd><b>{text(decision.get('value', ''))}</b> "
        f"{text(decision.get('reason', ''))}</dd></div>"
        for decision in map(as_mapping, as_list(run.run_json.get("decisions")))
        if decision
    )
    machine = _table(flatten(as_mapping(run.run_json.get("machine"))))
    return (
        (f'<div class="tiles">{numbers}</div>' if numbers else "")
        + (_details("What the engine decided, and why", f"<dl>{decisions}</dl>", is_open=is_open) if decisions else "")
        + (_details("The machine", machine) if machine else "")
    )


def build_configuration(runs: list[RunData]) -> str:
    """Return the section with the command that repeats each run, and the configuration or its differences."""
    body = "".join(
        (f"<h3>{make_dot(number)}{text(run.name)}</h3>" if len(runs) > 1 else "")
        + format_command(str(run.run_json["command"]), '<button class="copy">Copy</button>')
        for number, run in enumerate(runs)
        if run.run_json.get("command")
    )
    fields = [flatten(run.config) for run in runs]
    if len(runs) > 1:
        body += _render_differences(runs, fields)
    elif fields[0]:
        # the preset's values of changed fields, by dotted name
        preset = as_mapping(runs[0].run_json.get("changed"))
        summary = "The complete configuration" + (f", {len(preset)} changed from the preset" if preset else "")
        body += _details(summary, _table(fields[0], preset))
    return _section("Repeat it", body) if body else ""


def format_command(line: str, button: str = "") -> str:
    """Return a command line in a box, as HTML; lines break between words, not after the hyphens of a flag."""
    words = " ".join(f'<span class="token">{text(word)}</span>' for word in line.split(" "))
    return f'<div class="command"><pre>{words}</pre>{button}</div>'


def _render_differences(runs: list[RunData], fields: list[dict[str, Any]]) -> str:
    names = dict.fromkeys(name for config in fields for name in config)
    blocks = []
    for name in names:
        values = [format_field(config[name]) if name in config else "—" for config in fields]
        if len(set(values)) > 1:
            lines = "".join(
                f'<div class="line"><span>{make_dot(number)}{text(run.name)}</span><code>{text(value)}</code></div>'
                for number, (run, value) in enumerate(zip(runs, values))
            )
            blocks.append(f'<div class="score"><h4>{text(name)}</h4>{lines}</div>')
    return f'<h3>Differences</h3><div class="card">{"".join(blocks)}</div>' if blocks else ""


def _table(fields: Mapping[str, Any], preset: Mapping[str, Any] | None = None) -> str:
    rows = []
    for name, value in fields.items():
        is_changed = name in (preset or {})
        note = f' <span class="note">preset: {text(format_field((preset or {})[name]))}</span>' if is_changed else ""
        css_class = ' class="changed"' if is_changed else ""
        rows.append(f"<tr{css_class}><th>{text(name)}</th><td>{text(format_field(value))}{note}</td></tr>")
    return f"<table>{''.join(rows)}</table>" if rows else ""


def format_field(value: Any) -> str:
    """Format a value of a configuration as YAML: text without quotes, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def get_hue(number: int) -> str:
    """Return the CSS colour of a run or a setting by its index."""
    return f"var(--c{number % 8})"


def make_dot(number: int) -> str:
    """Return a dot in the colour `get_hue(number)`, to put before a name."""
    return f'<i class="key" style="--hue:{get_hue(number)}"></i>'


def _details(summary: str, body: str, *, is_open: bool = False) -> str:
    return f"<details{' open' if is_open else ''}><summary>{text(summary)}</summary>{body}</details>"


def _section(heading: str, body: str) -> str:
    return f"<section><h2>{text(heading)}</h2>{body}</section>"
