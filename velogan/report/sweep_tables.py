"""Tables of a sweep's page: settings, test figures, runs; and what they call things."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from velogan.files import duration
from velogan.report import scores, sections
from velogan.report.facts import mapping
from velogan.report.sections import text

MOST_SHOWN = 8
"""Settings whose curves and pictures are shown: the best ones."""
MOST_ROWS = 12
"""Rows of a table that are shown at once; the others unfold."""
WAYS = {"a2b": "A → B", "b2a": "B → A"}
WORDY = ("verdict", "why")
"""Columns of words, which are broken into lines."""


def settings_table(found: Mapping[str, Any]) -> str:
    """Each setting with its score, the verdict on it, and test figures where it has some; the best one first."""
    verdicts = found["verdicts"]
    if not verdicts:
        return ""
    low, high = min(row["low"] for row in verdicts.values()), max(row["high"] for row in verdicts.values())
    higher = found["better"] == "higher"
    heads = ("setting", "mean", "verdict", "behind the best", "range over seeds", "seeds", "on test pictures")
    columns: dict[str, list[str]] = {head: [] for head in heads}
    for number, (name, row) in enumerate(verdicts.items()):
        columns["setting"].append(key(number) + named(name))
        columns["mean"].append(figure(row["mean"]) + _reach(row, low, high))
        columns["verdict"].append(text(row["verdict"]))
        columns["behind the best"].append(_behind(row, higher=higher) if number else "")
        several = row["seeds"] > 1
        columns["range over seeds"].append(f"{figure(row['low'])} to {figure(row['high'])}" if several else "")
        columns["seeds"].append(str(row["seeds"]))
        columns["on test pictures"].append(main_test(found, name)[1].replace(", ", "<br>"))
    body = _grid(columns, more="setting", first="best")
    return f'<div class="card">{body}<p class="note">{_note(found)}</p></div>'


def _behind(row: Mapping[str, Any], *, higher: bool) -> str:
    """How much worse the mean is than the best one, and the interval of that."""
    sign = -1 if higher else 1
    span = sorted(sign * bound for bound in row["interval_95"] or ())
    between = f" <small>{figure(span[0], 3)} to {figure(span[1], 3)}</small>" if span else ""
    return figure(sign * row["difference"], 3) + between


def _reach(row: Mapping[str, Any], low: float, high: float) -> str:
    """A track from the lowest score of all settings to the highest, with this one's range and mean."""

    def percent(value: float) -> str:
        return f"{100 * (value - low) / (high - low) if high > low else 50:.1f}%"

    ends = f"left:{percent(row['low'])};right:calc(100% - {percent(row['high'])})"
    return f'<span class="reach"><i style="{ends}"></i><b style="left:{percent(row["mean"])}"></b></span>'


def _note(found: Mapping[str, Any]) -> str:
    """What was measured, and what the interval holds."""
    metric, better = found["metric"], "higher" if found["better"] == "higher" else "lower"
    said = (
        f"{text(metric_label(metric))} (<code>{text(metric)}</code>) on held-out training pictures, the "
        f"{extreme(found)} of each finished run; {better} is better. "
    )
    if found["nothing"] is not None:
        said += f"Doing nothing: {figure(found['nothing'])}. "
    rows = [row for row in found["verdicts"].values() if row["interval_95"]]
    if rows:
        over = {str(row["over"]) for row in rows}
        said += (
            "Behind the best: the difference of means and its 95 % interval, a bootstrap over "
            f"{text(' or '.join(sorted(over)))} (10,000 resamples)"
            f"{'; the choice of pictures is not in it' if over == {'seeds'} else ''}. "
            "With fewer than five seeds it is too narrow: read it as a hint. "
        )
    unranked = len({one["setting"] for one in found["trials"]} - set(found["verdicts"]))
    said += f"Not listed: {unranked} without a score of each seed. " if unranked else ""
    label = next((label for name in found["verdicts"] if (label := main_test(found, name)[0])), "")
    return said + (f"On test pictures: {text(label)}, for the chosen setting alone." if label else "")


def runs_table(found: Mapping[str, Any]) -> str:
    """Every run; those that failed come first."""
    trials = sorted(found["trials"], key=lambda one: one["status"] != "failed")
    columns = {
        "run": [named(one["name"]) for one in trials],
        "status": [text(one["status"]) for one in trials],
        "why": [text(one["reason"]) for one in trials],
        "score": [figure(one["score"]) for one in trials],
        "images": [f"{one['images']:,}" for one in trials],
        "training": [duration(one["seconds"]) for one in trials],
    }
    return f'<div class="card">{_grid(columns, more="run")}</div>'


def main_test(found: Mapping[str, Any], setting: str) -> tuple[str, str]:
    """Name and values of a setting's main test figure: that which chose, else the most telling one; or nothing."""
    means = _test_means(found, setting)
    own, chosen = _parted(_plain(found["metric"]))
    name = next((name for name in (own, *scores.TELLING, *means) if name in means), None)
    if name is None:
        return "", ""
    ways = [chosen] if chosen in means[name] else [way for way in WAYS if way in means[name]]
    shown = []
    for way in ways:  # unknown if a run's is not finite, as a PSNR is where nothing has changed
        values = [value for value in means[name][way] if value is not None]
        mean = fmean(values) if len(values) == len(means[name][way]) else None
        shown.append(f"{scores.figure({'name': name}, mean)} {WAYS[way]}")
    return scores.label({"name": name}), ", ".join(shown)


def _test_means(found: Mapping[str, Any], setting: str | None) -> dict[str, dict[str, list[float | None]]]:
    """Test figures of a setting's runs by name and direction."""
    means: dict[str, dict[str, list[float | None]]] = {}
    for one in found["trials"]:
        if one["setting"] == setting:
            for whole, value in mapping(one.get("test_scores")).items():
                name, way = _parted(whole)
                if way:
                    means.setdefault(name, {}).setdefault(way, []).append(value)
    return means


def metric_label(metric: str) -> str:
    """What a figure of `stats.jsonl` is called, for people: `validation/distance_a2b`."""
    name, way = _parted(_plain(metric))
    if logged := re.fullmatch("(cycle|reconstruction)_([ab])", name):
        return f"Difference of {logged[2].upper()} after the {logged[1]}"
    return scores.label({"name": name}) + (f", {WAYS[way]}" if way else "")


def _plain(metric: str) -> str:
    """The name that a figure of `stats.jsonl` has on test pictures."""
    return re.sub("^distance", "sliced_wasserstein", metric.removeprefix("validation/"))


def _parted(name: str) -> tuple[str, str]:
    """A figure's name and its direction, which may be missing."""
    whole = re.fullmatch(r"(.+)_(a2b|b2a)", name)
    return (whole[1], whole[2]) if whole else (name, "")


def extreme(found: Mapping[str, Any]) -> str:
    """Which score is the best."""
    return "highest" if found["better"] == "higher" else "lowest"


def _grid(columns: Mapping[str, Sequence[str]], *, more: str, most: int = MOST_ROWS, first: str = "") -> str:
    """A table of `columns` by heading; empty ones are left out. Rows past `most` unfold; `more` is what a row is.

    `first` is the class of the first row.
    """
    filled = {head: cells for head, cells in columns.items() if any(cells)}
    heads = "".join(f"<th{_words(head)}>{text(head)}</th>" for head in filled)
    rows = [
        "".join(f"<td{_words(head)}>{cell}</td>" for head, cell in zip(filled, cells))
        for cells in zip(*filled.values())
    ]
    rows = [f'<tr class="{"" if number else first}">{row}</tr>' for number, row in enumerate(rows)]
    parts = (rows[:most], rows[most:]) if len(rows) > most + 1 else (rows, [])
    tables = [
        f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(part)}</tbody></table></div>'
        for part in parts
    ]
    rest = f"<details><summary>{len(parts[1])} more {more}s</summary>{tables[1]}</details>" if parts[1] else ""
    return tables[0] + rest


def _words(head: str) -> str:
    return ' class="words"' if head in WORDY else ""


def named(setting: str) -> str:
    """A setting's or a run's name, which may be broken after its commas."""
    return text(setting).replace(",", ",<wbr>")


def figure(value: float | None, digits: int = 4) -> str:
    """A score; empty where there is none."""
    return "" if value is None else f"{value:z#.{digits}g}".removesuffix(".")


def key(number: int) -> str:
    """The colour of a setting in plots; none for those that are not in them."""
    return sections.key(number) if number < MOST_SHOWN else ""
