"""What a sweep found -> one HTML file that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from string import Template
from typing import Any

from velogan.files import duration, write_text
from velogan.report.facts import read_facts
from velogan.report.pictures import before_after
from velogan.report.sections import text

COLOURS = 8
MOST_PICTURES = 6
MOST_SHOWN = 8
"""Settings whose curves and pictures are shown: the best ones."""

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1000, 380, 70, 28, 10, 40


def write_sweep(found: Mapping[str, Any], out: Path) -> Path:
    """Writes the page of a sweep and returns `out`.

    `found` is what `sweep.json` holds, with `verdicts` by setting, best first, and `curves`: by setting, a list for
    each seed of (percent of the budget, score).
    """
    own = files("velogan.report")
    shown = list(found["verdicts"])[:MOST_SHOWN]
    sections = {
        "Settings": _table(found),
        "Scores over training": _plot(found, shown),
        "The same pictures by the best of each setting": _pictures(found, shown),
        "Runs": _runs(found),
        "The winner again": _again(found),
    }
    page = Template(own.joinpath("sweep.html").read_text(encoding="utf-8")).substitute(
        title="Sweep",
        style=own.joinpath("page.css").read_text(encoding="utf-8"),
        head=_head(found),
        sections="\n".join(f"<section><h2>{name}</h2>{body}</section>" for name, body in sections.items() if body),
    )
    write_text(out, page)
    return out


def _head(found: Mapping[str, Any]) -> str:
    verdicts, trials = found["verdicts"], found["trials"]
    best = next(iter(verdicts), None)
    others = [name for name, row in verdicts.items() if row["verdict"].startswith("within")]
    lead = "No run has a score yet."
    if best:
        lead = f"{text(best)} has the lowest {text(found['metric'])}: {_figure(verdicts[best]['mean'])} on average."
        if others:
            lead += f" {text(', '.join(others))}: within what another seed does."
    counts = [f"{sum(one['status'] == status for one in trials)} {status}" for status in _statuses(trials)]
    clock = "images" if found["budget"].endswith("images") else "minutes on each run's own training clock"
    load = " to ".join(f"{one:g}" for one in found["load"])
    facts = [f"{len(trials)} runs: {', '.join(counts)}", f"each {found['budget']} (equal {clock})", found["search"]]
    facts += [f"load of the machine at start and end: {load}"]
    return f'<h1>Sweep</h1><p class="lead">{lead}</p><p class="facts">{" · ".join(map(text, facts))}</p>'


def _statuses(trials: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(one["status"] for one in trials))


def _table(found: Mapping[str, Any]) -> str:
    rows = []
    for number, (name, row) in enumerate(found["verdicts"].items()):
        span = row["interval_95"]
        apart = f"{row['difference']:+.3g}" if number else ""
        between = f"{span[0]:+.3g} to {span[1]:+.3g}" if span else ""
        cells = [_figure(row["mean"]), f"{_figure(row['low'])} to {_figure(row['high'])}", str(row["seeds"])]
        cells += [apart, between]
        rows.append(
            f'<tr class="{"" if number else "best"}"><td>{_key(number)}{text(name)}</td>'
            + "".join(f"<td>{cell}</td>" for cell in cells)
            + f'<td class="words">{text(row["verdict"])}</td></tr>'
        )
    if not rows:
        return ""
    head = ("setting", "mean", "range over seeds", "seeds", "behind the best", "95 % interval", "verdict")
    note = (
        f"{text(found['metric'])} of held-out training pictures, the lowest of each finished run; lower is better. The "
        "interval of the difference is a bootstrap over seeds (10,000 resamples); the choice of pictures is not in it. "
        "With fewer than five seeds it is narrow: read it as a hint."
    )
    return f'<div class="card">{_grid(head, rows)}<p class="note">{note}</p></div>{_tests(found)}'


def _tests(found: Mapping[str, Any]) -> str:
    """Test figures of the chosen setting's runs, mean and range over seeds."""
    tested = [one["test_scores"] for one in found["trials"] if one.get("test_scores")]
    names = dict.fromkeys(name for scores in tested for name in scores)
    rows = []
    for name in names:
        values = [scores[name] for scores in tested if name in scores]
        cells = [_figure(fmean(values)), f"{_figure(min(values))} to {_figure(max(values))}", str(len(values))]
        rows.append(f"<tr><td>{text(name)}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    if not rows:
        return ""
    note = '<p class="note">Test pictures, measured for the best setting alone, when nothing was chosen any more.</p>'
    body = _grid(("figure", "mean", "range", "seeds"), rows)
    return f'<h3>The best setting on test pictures</h3><div class="card">{body}{note}</div>'


def _plot(found: Mapping[str, Any], shown: Sequence[str]) -> str:
    """A line for the mean over seeds of each setting, and a band from the lowest to the highest."""
    bands = {name: _band(found["curves"].get(name, [])) for name in shown}
    values = [value for band in bands.values() for point in band for value in point[1:]]
    if not values:
        return ""
    low, high = min(values), max(values)
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    low, high = low - margin, high + margin

    def place(percent: float, score: float) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * percent / 100
        return f"{x:.1f},{TOP + (HEIGHT - TOP - BOTTOM) * (high - score) / (high - low):.1f}"

    marks = [_level(low + (high - low) * part / 4, place) for part in range(5)]
    for percent in range(0, 101, 20):
        x, y = place(percent, low).split(",")
        marks.append(f'<text x="{x}" y="{float(y) + 20:.1f}" text-anchor="middle">{percent} %</text>')
    for number, (name, band) in enumerate(bands.items()):
        hue = _hue(number)
        area = [place(x, top) for x, _, _, top in band] + [place(x, bottom) for x, bottom, _, _ in reversed(band)]
        line = " ".join(place(x, mean) for x, _, mean, _ in band)
        marks.append(f'<polygon points="{" ".join(area)}" fill="{hue}" opacity="0.15"/>')
        marks.append(
            f'<polyline points="{line}" fill="none" stroke="{hue}" stroke-width="2.5">'
            f"<title>{text(name)}</title></polyline>"
        )
    keys = " ".join(f"<span>{_key(number)}{text(name)}</span>" for number, name in enumerate(bands))
    note = "Mean over seeds; the band reaches from the lowest to the highest. Across: share of the budget."
    picture = f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(marks)}</svg>'
    body = f'<div class="choices">{keys}</div><div class="wide">{picture}</div><p class="note">{note}</p>'
    return f'<div class="card">{body}</div>'


def _level(score: float, place: Any) -> str:
    left, y = place(0, score).split(",")
    right, _ = place(100, score).split(",")
    return (
        f'<line class="grid" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>'
        f'<text x="{float(left) - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{_figure(score)}</text>'
    )


def _band(seeds: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float, float, float]]:
    """(percent, lowest, mean, highest) where at least one seed was scored."""
    at: dict[int, list[float]] = {}
    for curve in seeds:
        for percent, score in curve:
            at.setdefault(round(percent), []).append(score)
    return [(percent, min(scores), fmean(scores), max(scores)) for percent, scores in sorted(at.items())]


def _pictures(found: Mapping[str, Any], shown: Sequence[str]) -> str:
    cards, inputs = [], ""
    for number, name in enumerate(shown):
        done = [one for one in found["trials"] if one["setting"] == name and one["score"] is not None]
        best = min(done, key=lambda one: one["score"], default=None)
        pairs = before_after(read_facts(Path(best["run"])))[:MOST_PICTURES] if best else []
        if pairs:
            inputs = inputs or _card("input", [picture for picture, _ in pairs])
            title = f"{_key(number)}{text(name)}"
            cards.append(_card(title, [picture for _, picture in pairs]))
    return f'<div class="columns">{inputs}{"".join(cards)}</div>' if cards else ""


def _card(title: str, pictures: Sequence[str]) -> str:
    images = "".join(f'<img src="{picture}" alt="">' for picture in pictures)
    return f'<div class="card"><h3>{title}</h3><div class="strip">{images}</div></div>'


def _runs(found: Mapping[str, Any]) -> str:
    rows = [
        f"<tr><td>{text(one['name'])}</td><td>{text(one['status'])}</td><td>{_figure(one['score'])}</td>"
        f"<td>{one['images']:,}</td><td>{duration(one['seconds'])}</td>"
        f'<td class="words">{text(one["reason"])}</td></tr>'
        for one in found["trials"]
    ]
    body = _grid(("run", "status", "score", "images", "training", "why"), rows)
    return f'<div class="card">{body}</div>'


def _again(found: Mapping[str, Any]) -> str:
    run = next((one["run"] for one in found["trials"] if one["name"] == found["best"]), None)
    if run is None:
        return ""
    return f'<div class="card"><pre>{text(found["again"])}</pre></div>'


def _grid(head: Sequence[str], rows: Sequence[str]) -> str:
    names = "".join(f"<th>{text(name)}</th>" for name in head)
    return f'<div class="wide"><table><thead><tr>{names}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _hue(number: int) -> str:
    return f"var(--c{number % COLOURS})"


def _key(number: int) -> str:
    return f'<span class="key" style="--hue:{_hue(number)}"></span>'
