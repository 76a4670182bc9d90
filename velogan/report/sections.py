"""The page's sections as HTML. Whatever comes from a file is escaped here."""

from __future__ import annotations

import html
import json
import re
import statistics
from collections.abc import Mapping
from typing import Any

from velogan.files import brief_duration, counted, duration
from velogan.report import scores
from velogan.report.facts import Facts, flat, is_number, listing, mapping
from velogan.report.failures import failures
from velogan.report.pictures import before_after
from velogan.report.verdict import capital, result

ARROW = " → "


def text(value: Any) -> str:
    """`value` as HTML text, safe in attributes too."""
    return html.escape(str(value), quote=True)


def title(runs: list[Facts]) -> str:
    """The headline, not escaped: "Apples become oranges"."""
    if len(runs) > 1:
        return f"{len(runs)} runs compared"
    source, target = runs[0].way("a2b")
    verb = "become" if source.endswith("s") else "becomes"
    return f"{capital(source)} {verb} {target}"


def head(runs: list[Facts]) -> str:
    """Headline, result in one sentence, what was run, and the newest pairs of pictures."""
    if len(runs) > 1:
        items = "".join(
            f"<li>{key(number)}<b>{text(facts.name)}</b> "
            f'{text(" ".join(result(facts)[:3]))}<br><span class="facts">{_about(facts)}</span></li>'
            for number, facts in enumerate(runs)
        )
        return f'<h1>{text(title(runs))}</h1><ul class="runs">{items}</ul>'
    facts = runs[0]
    pairs = "".join(
        f'<figure><img src="{before}" alt="before"><img src="{after}" alt="after"></figure>'
        for before, after in before_after(facts)
    )
    strip = f'<div class="pairs">{pairs}</div>' if pairs else ""
    first, *others = result(facts)
    lead = f'<p class="lead">{text(first)}</p>'
    if others:
        lead += f'<ul class="verdict">{"".join(f"<li>{_flags(text(one))}</li>" for one in others)}</ul>'
    best = f'<p class="facts">{text(chosen)}</p>' if (chosen := scores.chosen(facts)) else ""
    best += warnings(facts)
    return f'<h1>{text(title(runs))}</h1>{lead}<p class="facts">{_about(facts)}</p>{best}{strip}'


def _flags(said: str) -> str:
    """Escaped text in which flags are not broken."""
    return re.sub(r"--[\w.-]*\w", r'<code class="token">\g<0></code>', said)


def warnings(facts: Facts) -> str:
    """What went wrong in the training, as far as its log shows: what, since when, and what to try."""
    items = "".join(
        f"<li><b>{text(capital(one.what))}</b>, since {counted(one.since, 'image')}. <span>Try: "
        f"{text(one.hint)}.</span></li>"
        for one in failures(facts.stats)
    )
    return f'<ul class="warnings" role="status">{items}</ul>' if items else ""


def _about(facts: Facts) -> str:
    seconds, machine = facts.last("seconds"), mapping(facts.run.get("machine"))
    counts = [
        f"{count['train']:,} {facts.domain(domain)}"
        for domain in "ab"
        if is_number((count := mapping(mapping(facts.run.get("data")).get(domain))).get("train"))
    ]
    parts = [
        facts.run.get("preset"),
        f"{counted(facts.images, 'image')} seen" if facts.images else None,
        f"{duration(seconds)} of training" if seconds else None,
        f"data: {' and '.join(counts)}" if counts else None,
        counted(machine["cores"], "core") if is_number(machine.get("cores")) else None,
        machine.get("device"),
        str(facts.run.get("started") or "")[:16].replace("T", " "),
        f"velogan {facts.run['velogan']}" if facts.run.get("velogan") else None,
    ]
    return " · ".join(text(part) for part in parts if part)


def results(runs: list[Facts]) -> str:
    """Every score of every run: figure, bar, one plain sentence."""
    groups: dict[tuple[str, str], list[tuple[int, Facts, dict[str, Any]]]] = {}
    for number, facts in enumerate(runs):
        for row in scores.grouped(facts.scores)[1]:
            score = dict(row.first)
            key = (str(score.get("direction", "")), str(score.get("name", "")))
            groups.setdefault(key, []).append((number, facts, score))
    if not groups:
        return ""
    cards = []
    for direction in dict.fromkeys(direction for direction, _ in groups):
        blocks = [_score(group, len(runs) > 1) for (way, _), group in groups.items() if way == direction]
        named = {ARROW.join(run.way(direction)) for run in runs} if direction in ("a2b", "b2a") else {direction}
        heading = named.pop() if len(named) == 1 else ARROW.join(("A", "B") if direction == "a2b" else ("B", "A"))
        cards.append(f'<div class="card"><h3>{text(capital(heading))}</h3>{"".join(blocks)}</div>')
    legend = (
        '<p class="note">Right is better. <span class="mark value"></span> the translator, '
        '<span class="mark nothing"></span> doing nothing (the input left as it is), '
        '<span class="mark real"></span> real pictures against real ones.</p>'
    )
    table = _translators(runs[0]) if len(runs) == 1 else ""
    return _section("Scores", legend + f'<div class="columns">{"".join(cards)}</div>' + table + _protocols(runs))


def _translators(facts: Facts) -> str:
    """Every figure of every checkpoint and kind of weights, with its interval, between real pictures and nothing."""
    columns, rows = scores.grouped(facts.scores)
    same = facts.protocol.get("best") == scores.SAME
    shown = [*map(scores.heading, columns), *(["best"] if same else [])]
    titles = ["", "", *shown, "doing nothing", "real against real"]
    lines = []
    for row in rows:
        way = ARROW.join(facts.way(direction)) if (direction := row.first.get("direction")) in ("a2b", "b2a") else ""
        way = ", ".join(filter(None, [way, scores.split_of(row.first)]))
        cells = [_value(row.by_column.get(column)) for column in columns] + (["= last"] if same else [])
        real, baseline = (
            text(scores.figure(row.first, row.first.get(key))) if is_number(row.first.get(key)) else "–"
            for key in ("real", "baseline")
        )
        filled = zip(titles[1:], (text(way), *cells, baseline, real))
        shown = "".join(f'<td data-title="{text(title)}">{cell}</td>' for title, cell in filled)
        lines.append(f"<tr><th>{text(scores.label(row.first))}</th>{shown}</tr>")
    head = "".join(f"<th>{text(title)}</th>" for title in titles)
    said = f"Small: 95 % of resampled sets of images give figures in this range. {scores.WEIGHTS_NOTE}".replace("`", "")
    note = f'<p class="note">{text(said)}</p>'
    table = f'<div class="card figures"><table><tr>{head}</tr>{"".join(lines)}</table>{note}</div>'
    return _details("Every checkpoint, with intervals", table)


def _value(score: Mapping[str, Any] | None) -> str:
    if score is None:
        return "–"
    span = scores.between(score)
    return f"<b>{text(scores.figure(score, score['value']))}</b>" + (f"<small>{text(span)}</small>" if span else "")


def _score(group: list[tuple[int, Facts, dict[str, Any]]], many: bool) -> str:
    among = [score for _, _, score in group]
    first, lines = among[0], []
    for number, facts, score in group:
        weights = scores.heading((str(score.get("checkpoint") or ""), str(score.get("weights") or "")))
        on = f" · {scores.split_of(score)}" if scores.split_of(score) else ""
        name = key(number) + text(facts.name + on) if many else text(weights + on)
        value = text(scores.figure(score, score["value"]))
        lines.append(f'<div class="line"><span>{name}</span><b>{value}</b></div>')
        lines.append(_bar(scores.bar(score, among), hue=hue(number) if many else "var(--accent)"))
    known = [
        f"{what} {scores.figure(first, first[key])}"
        for key, what in (
            ("baseline", "doing nothing:"),
            ("real", "unrelated pictures:" if first.get("name") == "structure" else "real against real:"),
        )
        if is_number(first.get(key))
    ]
    # several runs may have several such figures, which the bars show
    aside = f" ({', '.join(known)})" if known and not many else ""
    return (
        f'<div class="score"><h4>{text(scores.label(first))}</h4>{"".join(lines)}'
        f'<p class="note">{text(first.get("what") or "")}{text(aside)}</p></div>'
    )


def _bar(bar: scores.Bar, *, hue: str) -> str:
    start = (bar.nothing or 0) if bar.rival else 0
    left, width = min(start, bar.value), abs(bar.value - start)
    worse = " worse" if bar.value < start else ""
    places = [("nothing", bar.nothing), ("real", bar.real), ("value", bar.value)]
    marks = [
        f'<span class="mark {kind}" style="left:{place:.1%}"></span>' for kind, place in places if place is not None
    ]
    gained = f'<i style="left:{left:.1%};width:{width:.1%}"></i>'
    return f'<div class="bar{worse}" style="--hue:{hue}">{gained}{"".join(marks)}</div>'


def _protocols(runs: list[Facts]) -> str:
    tables = "".join(
        (f"<h4>{text(facts.name)}</h4>" if len(runs) > 1 else "") + _table(flat(facts.protocol))
        for facts in runs
        if facts.protocol
    )
    return _details("How it was scored", tables) if tables else ""


def speed(runs: list[Facts]) -> str:
    """Images per second, milliseconds a step, what the engine picked and why."""
    if len(runs) == 1:
        body = _speed(runs[0], reasons=True)
    else:
        blocks = [(number, facts.name, _speed(facts, reasons=False)) for number, facts in enumerate(runs)]
        body = "".join(f"<h3>{key(number)}{text(name)}</h3>{block}" for number, name, block in blocks if block)
    return _section("Speed", body) if body else ""


def _speed(facts: Facts, *, reasons: bool) -> str:
    late = facts.stats[len(facts.stats) // 2 :]
    usual = {
        name: statistics.median(figures)
        for name in ("images_per_s", "step_ms")
        if (figures := [row[name] for row in late if is_number(row.get(name))])
    }
    seconds = facts.last("seconds")
    tiles = [
        (f"{usual['images_per_s']:.3g}", "images per second") if "images_per_s" in usual else None,
        (brief_duration(usual["step_ms"] / 1000), "per step") if "step_ms" in usual else None,
        (duration(seconds), "of training") if seconds else None,
        (f"{facts.images:,}", "images seen") if facts.images else None,
    ]
    shown = "".join(f"<div><b>{text(big)}</b><span>{what}</span></div>" for big, what in filter(None, tiles))
    picked = "".join(
        f"<div><dt>{text(choice.get('field', ''))}</dt><dd><b>{text(choice.get('value', ''))}</b> "
        f"{text(choice.get('reason', ''))}</dd></div>"
        for choice in map(mapping, listing(facts.run.get("decisions")))
        if choice
    )
    machine = _table(flat(mapping(facts.run.get("machine"))))
    return (
        (f'<div class="tiles">{shown}</div>' if shown else "")
        + (_details("What the engine picked, and why", f"<dl>{picked}</dl>", shown=reasons) if picked else "")
        + (_details("The machine", machine) if machine else "")
    )


def configuration(runs: list[Facts]) -> str:
    """The command to repeat each run, and the fields of its configuration."""
    body = "".join(
        (f"<h3>{key(number)}{text(facts.name)}</h3>" if len(runs) > 1 else "")
        + command(str(facts.run["command"]), '<button class="copy">Copy</button>')
        for number, facts in enumerate(runs)
        if facts.run.get("command")
    )
    fields = [flat(facts.config) for facts in runs]
    if len(runs) > 1:
        body += _differences(runs, fields)
    elif fields[0]:
        # the preset's values of changed fields, by dotted name
        preset = mapping(runs[0].run.get("changed"))
        summary = "The whole configuration" + (f", {len(preset)} changed from the preset" if preset else "")
        body += _details(summary, _table(fields[0], preset))
    return _section("Repeat it", body) if body else ""


def command(line: str, button: str = "") -> str:
    """A command in a box, whose lines break between words, not after the hyphens of a flag."""
    words = " ".join(f'<span class="token">{text(word)}</span>' for word in line.split(" "))
    return f'<div class="command"><pre>{words}</pre>{button}</div>'


def _differences(runs: list[Facts], fields: list[dict[str, Any]]) -> str:
    names = dict.fromkeys(name for config in fields for name in config)
    blocks = []
    for name in names:
        values = [plain(config[name]) if name in config else "—" for config in fields]
        if len(set(values)) > 1:
            lines = "".join(
                f'<div class="line"><span>{key(number)}{text(facts.name)}</span><code>{text(value)}</code></div>'
                for number, (facts, value) in enumerate(zip(runs, values))
            )
            blocks.append(f'<div class="score"><h4>{text(name)}</h4>{lines}</div>')
    return f'<h3>Where they differ</h3><div class="card">{"".join(blocks)}</div>' if blocks else ""


def _table(fields: Mapping[str, Any], preset: Mapping[str, Any] | None = None) -> str:
    rows = []
    for name, value in fields.items():
        changed = name in (preset or {})
        was = f' <span class="note">preset: {text(plain((preset or {})[name]))}</span>' if changed else ""
        mark = ' class="changed"' if changed else ""
        rows.append(f"<tr{mark}><th>{text(name)}</th><td>{text(plain(value))}{was}</td></tr>")
    return f"<table>{''.join(rows)}</table>" if rows else ""


def plain(value: Any) -> str:
    """A value of a configuration as it would be written."""
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def hue(number: int) -> str:
    """The colour of a run or a setting by its number, as CSS."""
    return f"var(--c{number % 8})"


def key(number: int) -> str:
    """The dot of that colour, before a name."""
    return f'<i class="key" style="--hue:{hue(number)}"></i>'


def _details(summary: str, body: str, *, shown: bool = False) -> str:
    return f"<details{' open' if shown else ''}><summary>{text(summary)}</summary>{body}</details>"


def _section(heading: str, body: str) -> str:
    return f"<section><h2>{text(heading)}</h2>{body}</section>"
