"""What a run's scores say in words: what became better than doing nothing, what worse, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from velogan.report.facts import Facts, is_number
from velogan.report.failures import nearer
from velogan.report.scores import TELLING, deviation, figure, gain, grouped, label, split_of

CHANGED_DB = 25.0
"""A background whose PSNR to the input is lower has visibly changed: its values differ by 6 % of their range."""
MOST_NAMED = 3
"""Figures that a sentence names of those that became better, and of those that became worse."""

_SUMMARY = {  # some figures became better, some worse
    (True, False): "Better than doing nothing.",
    (True, True): "Mixed: better than doing nothing by some figures, worse by others.",
    (False, True): "Worse than doing nothing.",
    (False, False): "No better than doing nothing, and no worse, as far as so few pictures tell.",
}
_LONGER = "Train longer: the same command with a larger --images goes on with this run"
_MASK = "begin a run with --generator.output mask, if this one has none: it keeps backgrounds"


def verdict(scores: Sequence[Mapping[str, Any]], names: Mapping[str, tuple[str, str]]) -> list[str]:
    """The verdict in a sentence, one for each direction, and one that says what to do where something is wrong.

    Of each direction its first translator counts, and figures for which doing nothing lies outside the 95 % interval.
    `names` are those of the domains that a direction leads from and to. Empty where nothing was compared with doing
    nothing.
    """
    _, rows = grouped(scores)
    sentences, good, poor, changed = [], False, False, False
    for way in dict.fromkeys(str(row.first.get("direction")) for row in rows):
        shown = [row.first for row in rows if str(row.first.get("direction")) == way]
        better, worse = _against_nothing(shown)
        parts = [f"better by {_named(better)}"] if better else []
        parts += [f"worse by {_named(worse)}"] if worse else []
        kept = next((one["value"] for one in shown if one.get("name") == "psnr_background_db"), CHANGED_DB)
        if is_number(kept) and kept < CHANGED_DB:
            parts.append(f"the background changed ({kept:.1f} dB to the input)")
            changed = True
        good, poor = good or bool(better), poor or bool(worse)
        if parts:
            where = " to ".join(names[way]) if way in names else way
            sentences.append(f"{where}{_aside(shown[0])}: {'; '.join(parts)}.")
    if not sentences:
        return []
    if poor or changed:
        sentences.append(f"{_LONGER}{f'. Or {_MASK}' if changed else ''}.")
    return [_SUMMARY[good, poor], *sentences]


def result(facts: Facts) -> list[str]:
    """The result of a run in sentences, the first one a summary, whether it was scored or not."""
    if facts.scores:
        said = verdict(facts.scores, {way: facts.way(way) for way in ("a2b", "b2a")})
        return [capital(one) for one in said] or [_first(facts.scores)]
    if facts.architecture:
        return ["A search: the command “velogan train --genotype” trains what it finds."]
    gained = nearer(facts.stats)
    return ["Not scored yet: the command “velogan evaluate” does it.", *([f"{capital(gained)}."] if gained else [])]


def capital(words: str) -> str:
    """`words` with a capital first letter, the rest as it is."""
    return words[:1].upper() + words[1:]


def _against_nothing(scores: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The figures that are better and those that are worse than doing nothing, the telling ones first."""
    rivals = [one for one in scores if gain(one) is not None and one.get("name") != "structure" and not _equal(one)]
    rank = {name: number for number, name in enumerate(TELLING)}
    rivals.sort(key=lambda one: rank.get(str(one.get("name")), -1))
    return [one for one in rivals if (gain(one) or 0) > 0], [one for one in rivals if (gain(one) or 0) < 0]


def _equal(score: Mapping[str, Any]) -> bool:
    """Whether doing nothing lies within the interval of the score, or that is of one picture, which has none."""
    if deviation(score) is None:
        return score.get("interval_95") is None and score.get("images_fake") == 1
    low, high = score["interval_95"]
    return low <= score["baseline"] <= high


def _named(scores: Sequence[Mapping[str, Any]]) -> str:
    shown = [
        f"{label(one)} ({figure(one, one['value'])}, doing nothing {figure(one, one['baseline'])})"
        for one in scores[:MOST_NAMED]
    ]
    more = len(scores) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _aside(score: Mapping[str, Any]) -> str:
    """Which translator and which pictures, where they are not the last one and test pictures."""
    said = ["best checkpoint"] if score.get("checkpoint") == "best" else []
    said += [f"on {split_of(score)}"] if split_of(score) else []
    return f" ({', '.join(said)})" if said else ""


def _first(scores: Sequence[Mapping[str, Any]]) -> str:
    """The most telling figure alone, where none is known of doing nothing."""
    score = min(scores, key=lambda one: TELLING.index(one["name"]) if one.get("name") in TELLING else len(TELLING))
    return f"{label(score)}{_aside(score)}: {figure(score, score['value'])}."
