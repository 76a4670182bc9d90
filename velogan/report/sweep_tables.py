"""Build the tables of a sweep's page (settings with test scores, and runs), and format its names and scores."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from velogan.files import format_duration
from velogan.report import scores
from velogan.report.sections import text

MAX_SHOWN = 8
"""Maximum number of settings whose images are shown: the best ones."""
DIRECTIONS = {"a2b": "A → B", "b2a": "B → A"}
TEXT_COLUMNS = ("verdict", "reason")
"""Columns of text, in which lines may break."""


def settings_table(result: Mapping[str, Any]) -> str:
    """Return a table of the settings, best first: score, verdict, and test scores if there are any."""
    verdicts = result["verdicts"]
    if not verdicts:
        return ""
    higher_is_better = result["better"] == "higher"
    heads = ("setting", "mean", "verdict", "behind the best", "range over seeds", "seeds", "on test images")
    columns: dict[str, list[str]] = {head: [] for head in heads}
    for number, (name, row) in enumerate(verdicts.items()):
        columns["setting"].append(allow_line_breaks(name))
        columns["mean"].append(format_score(row["mean"]))
        columns["verdict"].append(text(row["verdict"]))
        columns["behind the best"].append(_format_difference(row, higher_is_better=higher_is_better) if number else "")
        extremes = f"{format_score(row['low'])} to {format_score(row['high'])}"
        columns["range over seeds"].append(extremes if row["seeds"] > 1 else "")
        columns["seeds"].append(str(row["seeds"]))
        columns["on test images"].append("<br>".join(format_test_scores(result, name)))
    body = _table(columns, first="best")
    return f'<div class="card">{body}<p class="note">{_explain_table(result)}</p></div>'


def _format_difference(row: Mapping[str, Any], *, higher_is_better: bool) -> str:
    """Return how much worse a setting's mean is than the best mean, with the 95 % interval of the difference."""
    sign = -1 if higher_is_better else 1
    interval = sorted(sign * bound for bound in row["interval_95"] or ())
    between = f" <small>{format_score(interval[0], 3)} to {format_score(interval[1], 3)}</small>" if interval else ""
    return format_score(sign * row["difference"], 3) + between


def _explain_table(result: Mapping[str, Any]) -> str:
    """Return a note that says what the scores and the intervals mean."""
    metric, better = result["metric"], "higher" if result["better"] == "higher" else "lower"
    note = (
        f"{text(metric_label(metric))} (<code>{text(metric)}</code>) on held-out training images, the "
        f"{superlative(result)} of each finished run; {better} is better. "
    )
    rows = [row for row in result["verdicts"].values() if row["interval_95"]]
    if rows:
        resampled = {str(row["over"]) for row in rows}
        note += (
            "Behind the best: the difference of means and its 95 % interval, a bootstrap over "
            f"{text(' or '.join(sorted(resampled)))} (10,000 resamples)"
            f"{'; it does not include the choice of images' if resampled == {'seeds'} else ''}. "
            "With fewer than five seeds it is too narrow: take it as a hint. "
        )
    unranked = len({trial["setting"] for trial in result["trials"]} - set(result["verdicts"]))
    note += f"Not listed: {unranked} settings without a score of each seed. " if unranked else ""
    is_tested = any(format_test_scores(result, name) for name in result["verdicts"])
    return note + ("On test images: the same metric, for the best setting only." if is_tested else "")


def runs_table(result: Mapping[str, Any]) -> str:
    """Return a table of all runs, failed ones first."""
    trials = sorted(result["trials"], key=lambda trial: trial["status"] != "failed")
    columns = {
        "run": [allow_line_breaks(trial["name"]) for trial in trials],
        "status": [text(trial["status"]) for trial in trials],
        "reason": [text(trial["reason"]) for trial in trials],
        "score": [format_score(trial["score"]) for trial in trials],
        "images": [f"{trial['images']:,}" for trial in trials],
        "training": [format_duration(trial["seconds"]) for trial in trials],
    }
    return f'<div class="card">{_table(columns)}</div>'


def format_test_scores(result: Mapping[str, Any], setting: str) -> list[str]:
    """Return a setting's mean test score by the sweep's metric as text, one for each direction; empty if unknown."""
    name, own_direction = _split_metric(result["metric"])
    runs = [trial["test_scores"] for trial in result["trials"] if trial["setting"] == setting]
    formatted = []
    for direction in [own_direction] if own_direction else DIRECTIONS:
        key = f"{name}_{direction}"
        values = [run[key] for run in runs if run and key in run]
        if values:  # None stands for infinity, such as the PSNR of unchanged images
            mean = None if None in values else fmean(values)
            formatted.append(f"{scores.format_value({'name': name}, mean)} {DIRECTIONS[direction]}")
    return formatted


def metric_label(metric: str) -> str:
    """Return a readable name for a metric of `stats.jsonl`, such as `validation/distance_a2b`."""
    name, direction = _split_metric(metric)
    if logged := re.fullmatch("(cycle|reconstruction)_([ab])", name):
        return f"Difference of {logged[2].upper()} after the {logged[1]}"
    return scores.display_name({"name": name}) + (f", {DIRECTIONS[direction]}" if direction else "")


def _split_metric(metric: str) -> tuple[str, str]:
    """Split a metric of `stats.jsonl` into its name in test scores and its direction, which may be empty."""
    name, suffix, direction = metric.removeprefix("validation/").rpartition("_")
    name, direction = (name, direction) if direction in DIRECTIONS else (f"{name}{suffix}{direction}", "")
    return ("sliced_wasserstein" if name == "distance" else name), direction


def superlative(result: Mapping[str, Any]) -> str:
    """Return "highest" or "lowest", whichever score is the best."""
    return "highest" if result["better"] == "higher" else "lowest"


def _table(columns: Mapping[str, Sequence[str]], *, first: str = "") -> str:
    """Return a table of the `columns` (cells by heading) that are not empty; `first`: CSS class of the first row."""
    filled = {head: cells for head, cells in columns.items() if any(cells)}
    classes = {head: ' class="words"' if head in TEXT_COLUMNS else "" for head in filled}
    heads = "".join(f"<th{classes[head]}>{text(head)}</th>" for head in filled)
    rows = [
        "".join(f"<td{classes[head]}>{cell}</td>" for head, cell in zip(filled, cells))
        for cells in zip(*filled.values())
    ]
    body = "".join(f'<tr class="{"" if number else first}">{row}</tr>' for number, row in enumerate(rows))
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def allow_line_breaks(setting: str) -> str:
    """Return the escaped name of a setting or a run, in which lines may break after commas."""
    return text(setting).replace(",", ",<wbr>")


def format_score(value: float | None, digits: int = 4) -> str:
    """Format a score with `digits` significant digits; None becomes an empty string."""
    return "" if value is None else f"{value:z#.{digits}g}".removesuffix(".")
