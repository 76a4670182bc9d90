"""A profile -> one self-contained HTML file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from velogan.files import counted
from velogan.report.page import own
from velogan.report.profile_figures import Profile, hue, percent, piece, table, time
from velogan.report.profile_plots import areas, key, share, strip
from velogan.report.profile_questions import distributions, four_questions
from velogan.report.sections import text

LAST = ("losses", "optimizer", "loader", "rest")
"""Owners of time that are no networks."""

LAYERS = (
    ("weights", "moments", "averages", "pool of fakes", "gradients", "activations", "images", "temporary"),
    ("rest", "G_A", "G_B", "D_A", "D_B", "losses", "optimizer", "loader"),
)
"""Memory from the bottom of the picture up: by what it holds, and by network."""


def write_profile(profile: Profile, out: Path) -> Path:
    """Write the page of `profile`; return `out`."""
    sections = {
        "Four questions": four_questions(profile),
        "How often, how long": distributions(profile),
        "One step": _strip(profile) + _streams(profile),
        "By phase and network": _owners(profile),
        f"Top {piece(profile)}s": _top(profile),
        "Memory": _memory(profile),
    }
    page = Template(own("profile.html")).substitute(
        title="Where a step’s time goes",
        style="\n".join(own(name) for name in ("page.css", "profile.css")),
        head=_head(profile),
        sections="\n".join(f"<section><h2>{name}</h2>{body}</section>" for name, body in sections.items()),
        trace=text(Path(profile["trace"]).name),
    )
    out.write_text(page, encoding="utf-8")
    return out


def _head(profile: Profile) -> str:
    groups, temporal = profile["kernels"]["by_group"], profile["temporal"]
    first = sorted(groups.items(), key=lambda item: -item[1]["microseconds"])[:3]
    most = ", ".join(f"{percent(figure['share_of_window'])} {text(name)}" for name, figure in first)
    waits = (
        ", nearly all of it waiting for the host" if (profile["idle"]["host_wait"]["share_of_time"] or 0) > 0.8 else ""
    )
    lead = (
        f"A step takes {time(1000 * profile['step_ms'])}: {most}; "
        f"{percent(temporal['idle']['share_of_window'])} idle{waits}."
    )
    engine, machine = profile["engine"], profile["machine"]
    accumulated = f" × {profile['accumulate']}" if profile.get("accumulate", 1) > 1 else ""
    facts = [
        f"mode {engine['mode']}",
        engine["precision"],
        f"kernels {engine['kernels']}, compile {engine['compile']}",
        f"{profile['image_size']}×{profile['image_size']}, batch {profile['batch_size']}{accumulated}",
        f"{counted(profile['steps'], 'step')} profiled, "
        f"{_slower(profile['profiled_step_ms'] / profile['step_ms'] - 1)}",
        f"{machine['device']}, {counted(machine['threads'], 'thread')}, torch {machine['torch']}",
    ]
    lead += _bounds(profile)
    return f'<p class="lead">{lead}</p><p class="facts">{" · ".join(map(text, facts))}</p>'


def _bounds(profile: Profile) -> str:
    """What a step would take if it were only its convolutions, or only arithmetic; measured on CUDA."""
    found = profile.get("roofline")
    if not found:
        return ""
    return (
        f" Its convolutions alone, without launches, would take {time(1000 * found['ms'])}; its arithmetic, as fast as "
        f"one large product ({found['matmul_tflops']:.3g} TFLOP/s), {time(1000 * found['arithmetic_ms'])}."
    )


def _slower(share: float) -> str:
    if abs(share) > 0.25:
        return f"taking {share:+.0%} in time: this machine may be busy with something else, so measure again"
    return f"{percent(share)} slower under the profiler" if share > 0 else "no slower under the profiler"


def _strip(profile: Profile) -> str:
    found, lanes = profile["strip"], _networks(profile)
    spans = [(lanes.index(span["network"]), *_span(span)) for span in found["spans"]]
    picture = strip(lanes, spans, length=found["microseconds"])
    note = '<p class="note">Full colour: forward. Pale: backward. Where no lane has colour, nothing runs.</p>'
    return f'<div class="card"><div class="picture long">{picture}</div>{note}</div>'


def _span(span: Mapping[str, Any]) -> tuple[float, float, str, str]:
    """Start, end, colour and title."""
    colour = hue(span["network"])
    if span["way"] == "backward":
        colour = f"color-mix(in srgb, {colour} 50%, var(--card))"
    title = f"{span['phase'] or 'outside phases'}, {span['network']} {span['way']}: "
    return span["start"], span["end"], colour, title + time(span["end"] - span["start"])


def _streams(profile: Profile) -> str:
    """The same step by stream of the device, where there are several."""
    found = profile.get("streams")
    if not found:
        return ""
    lanes = [f"stream {lane['stream']}" for lane in found["lanes"]]
    spans = [(number, *_span(span)) for number, lane in enumerate(found["lanes"]) for span in lane["spans"]]
    picture = strip(lanes, spans, length=found["microseconds"])
    overlap = found["overlap"]
    note = (
        f'<p class="note">The same step by stream. Two or more run at once for {time(overlap["microseconds"])}, '
        f"{percent(overlap['share_of_busy'])} of the time in which anything runs.</p>"
    )
    keys = "".join(f"<li>{key(hue(name))}{text(name)}</li>" for name in _networks(profile))
    return f'<div class="card"><div class="picture long">{picture}</div><ul class="keys">{keys}</ul>{note}</div>'


def _networks(profile: Profile) -> list[str]:
    """The networks in the order of a step, then losses, optimizer, loader, rest."""
    found = list(dict.fromkeys(row["network"] for row in profile["owners"]))
    return [name for name in found if name not in LAST] + [name for name in LAST if name in found]


def _owners(profile: Profile) -> str:
    rows = profile["owners"]
    phases = list(dict.fromkeys(row["phase"] for row in rows if row["phase"]))
    present = {(row["phase"], row["way"]) for row in rows}
    columns = [(phase, way) for phase in phases for way in ("forward", "backward", "update") if (phase, way) in present]
    total = sum(row["microseconds"] for row in rows) or 1.0

    def cells(chosen: Sequence[Mapping[str, Any]], kind: str = "") -> str:
        parts = [[row for row in chosen if (row["phase"], row["way"]) == column] for column in columns]
        parts.append([row for row in chosen if not row["phase"]])
        found = [_cell(part, steps=profile["steps"], total=total, kind=kind) for part in parts]
        return "".join(found) + _cell(chosen, steps=profile["steps"], total=total, kind="sum")

    lines = [
        f"<tr><th>{key(hue(name))}{text(name)}</th>{cells([row for row in rows if row['network'] == name])}</tr>"
        for name in _networks(profile)
    ]
    lines.append(f"<tr><th>in all</th>{cells(rows, 'sum')}</tr>")
    head = ["", *(f"{text(phase)}<br>{text(way)}" for phase, way in columns), "outside<br>phases", "in all"]
    note = '<p class="note">Busy time in a step, and its share of all busy time.</p>'
    return f'<div class="card">{note}<div class="wide">{table(head, lines, "heat")}</div>{_idle_within(profile)}</div>'


def _cell(rows: Sequence[Mapping[str, Any]], *, steps: int, total: float, kind: str) -> str:
    spent = sum(row["microseconds"] for row in rows)
    if not spent:
        return "<td></td>"
    look = f'class="{kind}"' if kind else f'style="--heat:{min(200 * spent / total, 60):.0f}%"'
    return f"<td {look}>{time(spent / steps)}<small>{percent(spent / total)}</small></td>"


def _idle_within(profile: Profile) -> str:
    parts = [
        f"{percent(row['idle_share'])} of {time(row['microseconds'] / profile['steps'])} "
        + (f"in {text(row['phase'])}" if row["phase"] else "outside the phases")
        for row in profile["phases"]
    ]
    return f'<p class="note">Idle: {", ".join(parts)}.</p>' if parts else ""


def _top(profile: Profile) -> str:
    found, what = profile["kernels"], piece(profile)
    lines = [
        f'<tr><th><span class="mono">{text(_trimmed(one["name"]))}</span></th>'
        f"<td>{key(hue(one['group']))}{text(one['group'])}</td>"
        f"<td>{one['count'] / profile['steps']:,.4g}</td><td>{time(one['microseconds'] / max(one['count'], 1))}</td>"
        f"<td><b>{percent(one['share_of_time'])}</b>{share(one['share_of_time'] or 0, hue(one['group']))}</td></tr>"
        for one in found["top"]
    ]
    shown = percent(sum(one["share_of_time"] or 0 for one in found["top"]))
    note = f"{len(found['top'])} of {found['of']['names']} names, {shown} of the busy time, without what they call."
    body = table((what, "group", "a step", "each", "share"), lines, "leaders")
    return f'<div class="card"><p class="note">{note}</p><div class="wide">{body}</div></div>'


def _trimmed(name: str) -> str:
    name = re.sub(r"## Call CompiledFxGraph (\w{6})\w* ##", r"compiled graph \1", name)
    return name if len(name) <= 90 else name[:88] + "…"


def _memory(profile: Profile) -> str:
    found = profile["memory"]
    peak = found["peak"]
    note = (
        f'<p class="note">Live tensors in one step. Beside the names: at the peak of {peak["bytes"] / 2**20:,.0f} MiB, '
        f"{time(peak['microseconds'])} into the step.</p>"
    )
    cards = [
        f'<div class="card"><h3>{title}</h3>{_layers(found, by, order)}</div>'
        for by, title, order in zip(("category", "network"), ("By what it holds", "By network"), LAYERS)
    ]
    return note + f'<div class="columns">{"".join(cards)}</div>'


def _layers(found: Mapping[str, Any], by: str, order: Sequence[str]) -> str:
    layers: dict[str, list[float]] = {name: [] for name in order}
    for one in found["series"]:
        values = layers.get(one[by]) or [0.0] * len(one["bytes"])
        layers[one[by]] = [old + new / 2**20 for old, new in zip(values, one["bytes"])]
    layers = {name: values for name, values in layers.items() if values}
    at = found["microseconds"].index(found["peak"]["microseconds"])
    drawn = {name: (values, hue(name)) for name, values in layers.items()}
    picture = areas(found["microseconds"], drawn, unit="MiB")
    keys = "".join(
        f"<li>{key(hue(name))}{text(name)} {_mib(values[at])}</li>"
        for name, values in reversed(layers.items())
        if max(values) > 0.001 * found["peak"]["bytes"] / 2**20
    )
    return f'<div class="picture area">{picture}</div><ul class="keys">{keys}</ul>'


def _mib(value: float) -> str:
    return f"{value:,.0f} MiB" if value >= 10 else f"{value:.1f} MiB"
