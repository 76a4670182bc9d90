"""Write a profile as one self-contained HTML file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from velogan.files import format_brief_duration, pluralize
from velogan.report.page import read_asset
from velogan.report.plots import Drawing, round_ticks
from velogan.report.sections import text

Profile = Mapping[str, Any]
"""The contents of profile.json; see `measure.profile`."""

COLOURS = {
    "compute": "var(--c0)",
    "non_compute": "var(--c1)",
    "host_wait": "var(--worse)",
    "kernel_wait": "var(--c4)",
    "convolution": "var(--c0)",
    "norm, activation, padding": "var(--c1)",
    "copies and fills": "var(--c4)",
    "optimizer": "var(--c5)",
    "fused by the compiler": "var(--c3)",
}
"""CSS colours of categories of time and groups of kernels; all others are grey."""

NAMES = {
    "compute": "computing",
    "non_compute": "only copying or communicating",
    "idle": "idle",
    "host_wait": "waiting for the host",
    "kernel_wait": "between two queued kernels",
}


def write_profile_page(profile: Profile, out: Path) -> Path:
    """Write the page of `profile` to `out`; return `out`."""
    on_cuda = profile["device"] == "cuda"
    tables = [_temporal_card(profile), *([_idle_card(profile)] if on_cuda else []), _kernels_card(profile)]
    tables += [_launches_card(profile), *_launch_plots(profile["launches"])] if on_cuda else []
    sections = {"Tables": f'<div class="columns">{"".join(tables)}</div>'}
    if profile["streams"]:
        sections["One step by stream"] = _stream_plot(profile["streams"])
    sections[f"Top {_work_unit(profile)}s"] = _top_table(profile)
    page = Template(read_asset("profile.html")).substitute(
        title="Time of a training step",
        style="\n".join(read_asset(name) for name in ("page.css", "profile.css")),
        head=_head(profile),
        sections="\n".join(f"<section><h2>{name}</h2>{body}</section>" for name, body in sections.items()),
        trace=text(Path(profile["trace"]).name),
    )
    out.write_text(page, encoding="utf-8")
    return out


def percent(value: float | None) -> str:
    """Format a share (0 to 1) in percent; None becomes a dash."""
    if value is None:
        return "–"
    return f"{value:.0%}" if value >= 0.1 or value == 0 else f"{value:.1%}" if value >= 0.001 else "<0.1%"


def _time(microseconds: float) -> str:
    return format_brief_duration(microseconds / 1e6)


def _work_unit(profile: Profile) -> str:
    """Return the name of a unit of work: "operator" on a CPU, else "kernel"."""
    return "operator" if profile["device"] == "cpu" else "kernel"


def _head(profile: Profile) -> str:
    groups = profile["kernels"]["by_group"]
    largest = sorted(groups.items(), key=lambda item: -item[1]["microseconds"])[:3]
    shares = ", ".join(f"{percent(amount['share_of_window'])} {text(name)}" for name, amount in largest)
    idle = percent(profile["temporal"]["idle"]["share_of_window"])
    lead = f"A step takes {_time(1000 * profile['step_ms'])}: {shares}; {idle} idle."
    engine, machine = profile["engine"], profile["machine"]
    accumulated = f" × {profile['accumulate']}" if profile["accumulate"] > 1 else ""
    facts = [
        f"mode {engine['mode']}",
        engine["precision"],
        f"kernels {engine['kernels']}, compile {engine['compile']}",
        f"{profile['image_size']}×{profile['image_size']}, batch {profile['batch_size']}{accumulated}",
        f"{pluralize(profile['steps'], 'step')} profiled, "
        f"{profile['profiled_step_ms'] / profile['step_ms'] - 1:+.0%} in time under the profiler",
        f"{machine['device']}, {pluralize(machine['threads'], 'thread')}, torch {machine['torch']}",
    ]
    return f'<p class="lead">{lead}</p><p class="facts">{" · ".join(map(text, facts))}</p>'


def _table(head: Iterable[str], rows: Iterable[str], css_class: str = "") -> str:
    """Return a table with the header cells `head` and the rows `rows`, both HTML; `css_class` is a CSS class."""
    cells = "".join(f"<th>{cell}</th>" for cell in head)
    return f'<table class="parts {css_class}"><thead><tr>{cells}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _card(title: str, note: str, body: str) -> str:
    """Return a box with a title, a note and a body, all HTML."""
    return f'<div class="card"><h3>{title}</h3><p class="note">{note}</p>{body}</div>'


def _key(name: str) -> str:
    """Return a legend square in the colour of `name`, hatched for `idle`."""
    if name == "idle":
        return '<span class="legend-key idle"></span>'
    return f'<span class="legend-key" style="--hue:{_colour(name)}"></span>'


def _colour(name: str) -> str:
    return COLOURS.get(name, "var(--c7)")


def _share_bar(value: float | None, colour: str) -> str:
    return f'<span class="share" style="--hue:{colour}"><i style="width:{100 * min(value or 0, 1):.2f}%"></i></span>'


def _breakdown(counts: Mapping[str, Any], names: Iterable[str], unit: str) -> str:
    """Return a bar of shares of time, and a table of counts, times and shares."""
    entries = [(name, counts[name]) for name in names]
    bar = "".join(
        f'<i class="{"idle" if name == "idle" else ""}" style="flex:{amount["share_of_time"]:.5f} 0 0;'
        f'--hue:{_colour(name)}" title="{text(NAMES.get(name, name))}: {amount["share_of_time"]:.1%}"></i>'
        for name, amount in entries
        if amount["share_of_time"]
    )
    rows = [
        f"<tr><th>{_key(name)}{text(NAMES.get(name, name))}</th><td>{amount['count']:,}</td>"
        f"<td>{_time(amount['microseconds'])}</td><td><b>{percent(amount['share_of_time'])}</b></td></tr>"
        for name, amount in entries
    ]
    return f'<div class="stack">{bar}</div>' + _table(("", text(unit), "time", "share"), rows)


def _temporal_card(profile: Profile) -> str:
    totals = profile["temporal"]["of"]
    note = (
        f"Of {_time(totals['microseconds'])} in {pluralize(totals['steps'], 'step')}. "
        "Copying during a computation counts as computing."
    )
    body = _breakdown(profile["temporal"], ("compute", "non_compute", "idle"), f"{_work_unit(profile)}s, gaps")
    return _card("Temporal", note, body)


def _idle_card(profile: Profile) -> str:
    totals, share = profile["idle"]["of"], profile["temporal"]["idle"]["share_of_window"]
    note = f"Of {_time(totals['microseconds'])} in {totals['count']:,} gaps, {percent(share)} of the total time."
    return _card("Idle", note, _breakdown(profile["idle"], ("host_wait", "kernel_wait", "other"), "gaps"))


def _kernels_card(profile: Profile) -> str:
    counts, unit = profile["kernels"], _work_unit(profile)
    note = f"Of {_time(counts['of']['microseconds'])} in {counts['of']['count']:,} {unit}s."
    groups = [name for name, amount in counts["by_group"].items() if amount["count"]]
    kinds = [(kind, counts[kind]) for kind in ("compute", "memory", "communication")]
    memory = sorted(counts["by_memory_kind"].items(), key=lambda item: -item[1]["microseconds"])[:6]
    rows = [
        f"<tr><th>{text(name)}</th><td>{amount['count']:,}</td><td>{_time(amount['microseconds'])}</td>"
        f"<td>{percent(amount['share_of_time'])}</td></tr>"
        for name, amount in (*kinds, *memory)
    ]
    by_kind = _table(("by kind, memory by name", f"{unit}s", "time", "share"), rows)
    return _card(f"{unit.capitalize()}s", note, _breakdown(counts["by_group"], groups, f"{unit}s") + by_kind)


def _launches_card(profile: Profile) -> str:
    counts = profile["launches"]
    rows = [
        _launch_row("kernels shorter than their launch", counts["short"], counts["of"]["kernels"]),
        _launch_row("launches over 50 µs", counts["slow"], counts["of"]["launches"]),
        _launch_row("delays over 100 µs", counts["delayed"], counts["of"]["delays"]),
    ]
    note = "The launch of a captured graph is divided among its kernels. Delays overlap with work."
    return _card("Launches", note, _table(("", "share of count", "share of time"), rows))


def _launch_row(name: str, amount: Mapping[str, Any], totals: Mapping[str, Any]) -> str:
    count, spent = amount["share_of_count"], amount["share_of_time"]
    return (
        f"<tr><th>{text(name)}</th><td><b>{percent(count)}</b>{_share_bar(count, 'var(--c1)')}"
        f"<br><small>{amount['count']:,} of {totals['count']:,}</small></td>"
        f"<td><b>{percent(spent)}</b>{_share_bar(spent, 'var(--c0)')}"
        f"<br><small>{_time(amount['microseconds'])} of {_time(totals['microseconds'])}</small></td></tr>"
    )


def _launch_plots(launches: Mapping[str, Any]) -> list[str]:
    """Return plots of delays and of short kernels, like Figures 4 and 6 of "Cycling Faster Through CycleGAN"."""
    delays = _histogram(launches["delays"], lambda row: row["below"] > 100)
    short = _histogram(launches["shorter"], lambda row: False)
    return [
        _card("Delay of kernels", "From launch to start. Red: over 100 µs.", delays),
        _card("Duration of short kernels", "Of kernels that are shorter than their launch.", short),
    ]


def _histogram(bins: Sequence[Mapping[str, float]], is_red: Callable[[Mapping[str, float]], bool]) -> str:
    """Return a bar chart of counts by duration."""
    highest = max((row["count"] for row in bins), default=0) or 1
    bars = "".join(
        f'<div{" class=red" if is_red(row) else ""} style="height:{100 * row["count"] / highest:.1f}%" '
        f'title="below {_time(row["below"])}: {row["count"]:g}, {_time(row["microseconds"])} in all"></div>'
        for row in bins
    )
    ticks = "".join(f"<span>{_time(row['below']) if i % 3 == 0 else ''}</span>" for i, row in enumerate(bins))
    return f'<div class="bars">{bars}</div><div class="ticks">{ticks}</div>'


def _stream_plot(streams: Mapping[str, Any]) -> str:
    """Return a plot like Figure 1 of "Cycling Faster Through CycleGAN": the work of each CUDA stream over time."""
    lanes, length = streams["lanes"], streams["microseconds"]
    overlap = streams["overlap"]
    width, left = 1000, 86
    height, gap = 22, 4
    bottom = len(lanes) * (height + gap)
    scale = (width - left) / length
    drawing = Drawing(width, bottom + 22)
    for number, lane in enumerate(lanes):
        y = number * (height + gap)
        drawing.label(left - 8, y + 15, f"stream {lane['stream']}", anchor="end")
        drawing.line([(left, y + height + 2), (width, y + height + 2)], "grid", width=None)
        for span in lane["spans"]:
            x, span_width = left + scale * span["start"], max(scale * (span["end"] - span["start"]), 0.6)
            title = f"{span['group']}: {_time(span['end'] - span['start'])}"
            drawing.rect(x, y, span_width, height, fill=_colour(span["group"]), rx=2, title=title)
    for mark in round_ticks(0, length):
        drawing.label(left + scale * mark, bottom + 16, _time(mark), anchor="middle")
    groups = dict.fromkeys(span["group"] for lane in lanes for span in lane["spans"])
    keys = "".join(f"<li>{_key(name)}{text(name)}</li>" for name in groups)
    note = (
        f"Two or more run at once for {_time(overlap['microseconds'])}, "
        f"{percent(overlap['share_of_busy'])} of the busy time."
    )
    return (
        f'<div class="card"><div class="picture">{drawing.to_inline_svg()}</div>'
        f'<ul class="keys">{keys}</ul><p class="note">{note}</p></div>'
    )


def _top_table(profile: Profile) -> str:
    counts, unit = profile["kernels"], _work_unit(profile)
    rows = [
        f'<tr><th><span class="mono">{text(_shorten_name(top["name"]))}</span></th>'
        f"<td>{_key(top['group'])}{text(top['group'])}</td>"
        f"<td>{top['count'] / profile['steps']:,.4g}</td><td>{_time(top['microseconds'] / top['count'])}</td>"
        f"<td><b>{percent(top['share_of_time'])}</b>{_share_bar(top['share_of_time'], _colour(top['group']))}</td></tr>"
        for top in counts["top"]
    ]
    listed_share = percent(sum(top["share_of_time"] or 0 for top in counts["top"]))
    note = f"{len(rows)} of {counts['of']['names']} names, {listed_share} of the busy time, without nested operators."
    table = _table((unit, "group", "per step", "each", "share"), rows, "leaders")
    return f'<div class="card"><p class="note">{note}</p><div class="wide">{table}</div></div>'


def _shorten_name(name: str) -> str:
    name = re.sub(r"## Call CompiledFxGraph (\w{6})\w* ##", r"compiled graph \1", name)
    return name if len(name) <= 90 else name[:88] + "…"
