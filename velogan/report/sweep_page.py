"""What a sweep found -> one HTML file that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from PIL import Image

from velogan.files import counted, write_text
from velogan.report.facts import read_facts
from velogan.report.page import own
from velogan.report.pictures import before_after, inline
from velogan.report.sections import command, hue, text
from velogan.report.sweep_plots import curves
from velogan.report.sweep_tables import (
    MOST_SHOWN,
    WAYS,
    extreme,
    figure,
    key,
    main_test,
    metric_label,
    named,
    runs_table,
    settings_table,
)

MOST_NAMES = 3


def write_sweep(found: Mapping[str, Any], out: Path) -> Path:
    """Writes the page of a sweep and returns `out`.

    `found` is what `sweep.json` holds, with `verdicts` by setting, best first; `nothing`: the metric of the inputs as
    they are, None where unknown; `curves`: by setting, a list for each seed of (percent of the budget, score); and
    `pictures`: by setting, its best `run` and, by direction, `pairs` of input and translation as `(H, W, 3)` uint8.
    """
    shown = list(found["verdicts"])[:MOST_SHOWN]
    sections = {
        "Settings": settings_table(found),
        "Held-out pictures": strips(found["pictures"]),
        "Scores over training": _curves(found, shown),
        "Repeat the winner": _again(found),
        "Runs": runs_table(found),
    }
    page = Template(own("sweep.html")).substitute(
        title="Sweep",
        style=own("page.css"),
        head=_head(found),
        sections="\n".join(f"<section><h2>{name}</h2>{body}</section>" for name, body in sections.items() if body),
    )
    write_text(out, page)
    return out


def _head(found: Mapping[str, Any]) -> str:
    trials = found["trials"]
    counts = [f"{sum(one['status'] == status for one in trials)} {status}" for status in _statuses(trials)]
    clock = "images" if found["budget"].endswith("images") else "minutes, everything counted"
    load = " to ".join(f"{one:g}" for one in found["load"])
    facts = [counted(len(trials), "run") + f": {', '.join(counts)}", f"each {found['budget']} (equal {clock})"]
    facts += [found["search"], f"load of the machine at start and end: {load}"]
    return f'<h1>Sweep</h1><p class="lead">{_lead(found)}</p><p class="facts">{" · ".join(map(text, facts))}</p>'


def _lead(found: Mapping[str, Any]) -> str:
    """The answer in sentences: which setting is best, by how much, and which others may be as good."""
    verdicts = found["verdicts"]
    best = next(iter(verdicts), None)
    if best is None:
        return "No finished run has a score."
    row, others = verdicts[best], len(verdicts) - 1
    seeds = f" on average over {row['seeds']} seeds" if row["seeds"] > 1 else ""
    what = text(metric_label(found["metric"]))
    said = f"<b>{named(best)}</b> has the {extreme(found)} {what}" if others else f"{what} of <b>{named(best)}</b>"
    said += f": {figure(row['mean'])}{seeds}. "
    if worse := no_gain(found):
        said += f"{worse} "
    label, values = main_test(found, best)
    if label:
        same = label == metric_label(found["metric"])
        said += f"On test pictures: {'' if same else f'{text(label)} '}{values}. "
    near = [name for name, one in verdicts.items() if one["verdict"].startswith("within")]
    unknown = sum(one["verdict"].startswith("one seed") for one in verdicts.values())
    if near:
        names = f": {', '.join(map(named, near))}" if len(near) <= MOST_NAMES else ""
        said += f"{len(near)} of {counted(others, 'other')} {'is' if len(near) == 1 else 'are'} within what another "
        said += f"seed does{names}."
    elif others and unknown:
        said += "With one seed of a setting, nothing can be said of what another seed does."
    elif others:
        said += "The other one differs." if others == 1 else f"All {others} others differ."
    return said


def no_gain(found: Mapping[str, Any]) -> str:
    """A sentence where the best setting is no nearer to real pictures than the inputs are; else empty."""
    means, nothing = [row["mean"] for row in found["verdicts"].values()], found["nothing"]
    if nothing is None or not means or min(means) < nothing:
        return ""
    return f"No setting is nearer to real pictures than doing nothing ({figure(nothing)}): train for longer."


def _statuses(trials: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(one["status"] for one in trials))


def _curves(found: Mapping[str, Any], shown: Sequence[str]) -> str:
    hues = [hue(number) for number in range(len(shown))]
    picture = curves({name: found["curves"].get(name, []) for name in shown}, hues)
    if not picture:
        return ""
    keys = " ".join(f"<span>{key(number)}{named(name)}</span>" for number, name in enumerate(shown))
    note = "Across: share of the budget. "
    if any(row["seeds"] > 1 for row in found["verdicts"].values()):
        note += "Mean over seeds; the band reaches from the lowest to the highest. "
    if len(found["verdicts"]) > len(shown):
        note += f"The {len(shown)} best settings."
    body = f'<div class="choices">{keys}</div><div class="wide"><div class="plot curves">{picture}</div></div>'
    return f'<div class="card">{body}<p class="note">{note}</p></div>'


OF_THE_BEST = "Pictures that none of these runs was trained on, by the best checkpoint of the best run of each setting."


def strips(made: Mapping[str, Mapping[str, Any]], note: str = OF_THE_BEST) -> str:
    """For each direction the inputs, and below them what a run of each setting makes of them; `note` says which."""
    titles = {name: f"{key(number)}{named(name)}" for number, name in enumerate(made)}
    cards = []
    for way in WAYS:
        shown_by = {name: _strips(one["pairs"][way]) for name, one in made.items() if one["pairs"].get(way)}
        rows, shown = "", None
        for name, (before, after) in shown_by.items():
            rows += (_row("input", before) if before != shown else "") + _row(titles[name], after)
            shown = before
        if rows:
            names = read_facts(Path(made[next(iter(shown_by))]["run"])).way(way)
            cards.append(f'<div class="card"><h3>{text(" → ".join(names))}</h3><div class="wide">{rows}</div></div>')
    note = f'<p class="note">{note}</p>' if cards else ""
    cards += [_sampled(titles[name], Path(one["run"])) for name, one in made.items() if not one["pairs"]]
    return f'{note}<div class="columns">{"".join(cards)}</div>' if any(cards) else ""


def _strips(pairs: Sequence[tuple[Any, Any]]) -> tuple[str, str]:
    """Inputs and translations, side by side."""
    before, after = ([inline(Image.fromarray(one)) for one in side] for side in zip(*pairs))
    return _images(before), _images(after)


def _sampled(title: str, run: Path) -> str:
    """The newest sample grid of a run without held-out pictures."""
    pairs = before_after(read_facts(run))
    if not pairs:
        return ""
    before, after = (_images(side) for side in zip(*pairs))
    rows = _row("input", before) + _row(title, after)
    note = '<p class="note">There are no held-out pictures to show: these are samples of its training.</p>'
    return f'<div class="card"><div class="wide">{rows}</div>{note}</div>'


def _images(pictures: Sequence[str]) -> str:
    return "".join(f'<img src="{picture}" alt="">' for picture in pictures)


def _row(title: str, images: str) -> str:
    return f'<h4>{title}</h4><div class="strip">{images}</div>'


def _again(found: Mapping[str, Any]) -> str:
    if found["best"] is None:
        return ""
    return command(found["again"])
