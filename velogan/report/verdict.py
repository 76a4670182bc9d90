"""Summarise a run's scores in sentences: better or worse than the unchanged input, and advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from velogan.files import join_first
from velogan.report.failures import describe_improvement
from velogan.report.run_data import RunData, is_number
from velogan.report.scores import (
    BY_IMPORTANCE,
    INPUT_METRICS,
    MIN_RETRIEVAL,
    display_name,
    format_value,
    group_scores,
    half_interval,
    improvement,
    split_note,
)

CHANGED_DB = 25.0
"""PSNR of a background to the input, in dB, below which it has visibly changed: an error of 6 % of the range."""
MAX_NAMED = 3
"""Maximum number of metrics that a sentence names as better, and as worse."""

Score = Mapping[str, Any]

_SUMMARY = {  # (some metrics are better, some are worse)
    (True, False): "Better than the unchanged input.",
    (True, True): "Mixed: better than the unchanged input by some metrics, worse by others.",
    (False, True): "Worse than the unchanged input.",
    (False, False): "Neither better nor worse than the unchanged input, as far as this number of images can tell.",
}
_LONGER = "Train longer: the same command with a larger --images resumes this run"
_MASK = "start a new run with --generator.output mask, if this one has none: it preserves backgrounds"


def summarize_scores(scores: Sequence[Score], names: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return a summary, a sentence for each direction, and what to do if something is worse.

    Only the first checkpoint and weights of each direction count, and metrics whose 95 % interval does not contain
    the value of the unchanged input. An improvement counts only if translations identify their inputs (`retrieval`).
    Empty if nothing can be compared, for example if the unchanged input was not scored.

    scores: the field `scores` of scores.json
    names: source and target domain of each direction
    """
    _, rows = group_scores(scores)
    sentences: list[str] = []
    unrelated: dict[str, bool] = {}  # by direction, whether something is better
    has_better = has_worse = background_changed = False
    for direction in dict.fromkeys(str(row.first.get("direction")) for row in rows):
        first = [row.first for row in rows if str(row.first.get("direction")) == direction]
        better, worse = _compare_with_baseline(first)
        title = " to ".join(names[direction]) if direction in names else direction
        retrieved: Any = next((score["value"] for score in first if score.get("name") == "retrieval"), None)
        is_related = is_number(retrieved) and retrieved >= MIN_RETRIEVAL
        parts = [f"better by {_list_metrics(better)}"] if better else []
        if is_number(retrieved) and (better or not is_related):
            share = format_value({"name": "retrieval"}, retrieved)
            parts.append(f"more like their own input than like another in {share} of comparisons (chance 50 %)")
        elif better:  # retrieval needs several images
            parts.append("whether they depend on their inputs was not measured")
        if is_number(retrieved) and not is_related:
            unrelated[title] = bool(better)
        parts += [f"worse by {_list_metrics(worse)}"] if worse else []
        background = next((score["value"] for score in first if score.get("name") == "psnr_background_db"), CHANGED_DB)
        if is_number(background) and background < CHANGED_DB:
            parts.append(f"the background changed ({background:.1f} dB to the input)")
            background_changed = True
        has_better, has_worse = has_better or (bool(better) and is_related), has_worse or bool(worse)
        if parts:
            sentences.append(f"{title}{_note(first[0])}: {'; '.join(parts)}.")
    if not sentences:
        is_comparable = any(half_interval(row.first) and improvement(row.first) is not None for row in rows)
        return [_SUMMARY[False, False]] if is_comparable else []
    if has_worse or background_changed or unrelated:
        sentences.append(f"{_LONGER}{f'. Or {_MASK}' if background_changed else ''}.")
    if unrelated:
        start = "Realistic, but unrelated" if any(unrelated.values()) else "Unrelated"
        return [f"{start} to the input: {', '.join(unrelated)}.", *sentences]
    return [_SUMMARY[has_better, has_worse], *sentences]


def summarize_run(run: RunData) -> list[str]:
    """Return the result of a run in sentences, the first of which is a summary. The run need not be scored."""
    if run.scores:
        names = {direction: run.domain_names(direction) for direction in ("a2b", "b2a")}
        sentences = summarize_scores(run.scores, names)
        return [capitalize(sentence) for sentence in sentences] or [_first_metric(run.scores)]
    if run.architecture:
        return ["A search: the command “velogan train --genotype” trains the architecture that it chose."]
    improved = describe_improvement(run.stats)
    hint = "Not scored yet: run “velogan evaluate”."
    return [hint, f"{capitalize(improved)}."] if improved else [hint]


def capitalize(text: str) -> str:
    """Return `text` with a capital first letter; the rest is unchanged, unlike `str.capitalize`."""
    return text[:1].upper() + text[1:]


def _compare_with_baseline(scores: Sequence[Score]) -> tuple[list[Score], list[Score]]:
    """Return the scores that are better and those that are worse than the unchanged input, most important first."""
    rank = {name: number for number, name in enumerate(BY_IMPORTANCE)}
    different = [score for score in scores if _differs_from_baseline(score)]
    different.sort(key=lambda score: rank.get(str(score.get("name")), len(rank)))
    gains = [(improvement(score) or 0, score) for score in different]
    return [score for gain, score in gains if gain > 0], [score for gain, score in gains if gain < 0]


def _differs_from_baseline(score: Score) -> bool:
    """Return whether the unchanged input's value is outside the 95 % interval, or there is none of several images."""
    if improvement(score) is None or score.get("name") in INPUT_METRICS:
        return False
    if half_interval(score) is None:  # one image has no interval, so it decides nothing
        return score.get("interval_95") is not None or score.get("images_fake") != 1
    low, high = score["interval_95"]
    return not low <= score["baseline"] <= high


def _list_metrics(scores: Sequence[Score]) -> str:
    listed = [
        f"{display_name(score)} ({format_value(score, score['value'])}, "
        f"unchanged input {format_value(score, score['baseline'])})"
        for score in scores
    ]
    return join_first(listed, MAX_NAMED)


def _note(score: Score) -> str:
    """Return a note on the checkpoint if it is the best one, and on the images unless they are test images."""
    parts = ["best checkpoint"] if score.get("checkpoint") == "best" else []
    parts += [f"on {split_note(score)}"] if split_note(score) else []
    return f" ({', '.join(parts)})" if parts else ""


def _first_metric(scores: Sequence[Score]) -> str:
    """Return a sentence with the most important metric, for scores without a verdict."""
    rank = {name: number for number, name in enumerate(BY_IMPORTANCE)}
    score = min(scores, key=lambda score: rank.get(str(score.get("name")), len(rank)))
    return f"{display_name(score)}{_note(score)}: {format_value(score, score['value'])}."
