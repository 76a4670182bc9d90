"""Four questions about a profile; each is a card with a picture and what its shares are of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from velogan.files import counted
from velogan.report.profile_figures import NAMES, Profile, card, hue, percent, piece, table, time
from velogan.report.profile_plots import key, share
from velogan.report.sections import text


def four_questions(profile: Profile) -> str:
    """The cards as HTML: is the device busy, why is it idle, which kernels run, what does launching cost."""
    cards = [_temporal(profile), _idle(profile), _kernels(profile), _launches(profile)]
    return f'<div class="columns">{"".join(cards)}</div>'


def _parts(figures: Mapping[str, Any], names: Iterable[str], what: str) -> str:
    """A bar of shares of time, and a table with what they are shares of."""
    shown = [(name, figures[name]) for name in names if figures.get(name)]
    hues = {name: None if name == "idle" else hue(name) for name, _ in shown}
    bar = "".join(
        f'<i class="{"" if hues[name] else "idle"}" style="flex:{figure["share_of_time"]:.5f} 0 0;--hue:{hues[name]}" '
        f'title="{text(NAMES.get(name, name))}: {figure["share_of_time"]:.1%}"></i>'
        for name, figure in shown
        if figure["share_of_time"]
    )
    rows = [
        f"<tr><th>{key(hues[name])}{text(NAMES.get(name, name))}</th>"
        f"<td>{figure['count']:,}</td><td>{time(figure['microseconds'])}</td>"
        f"<td><b>{percent(figure['share_of_time'])}</b></td></tr>"
        for name, figure in shown
    ]
    return f'<div class="stack">{bar}</div>' + table(("", text(what), "time", "share"), rows)


def _temporal(profile: Profile) -> str:
    of = profile["temporal"]["of"]
    of_all = f"Of {time(of['microseconds'])} in {counted(of['steps'], 'step')}."
    note = f"{of_all} What overlaps a computation counts as computing."
    body = _parts(profile["temporal"], ("compute", "non_compute", "idle"), f"{piece(profile)}s, gaps")
    return card("Is the device busy?", note, body)


def _idle(profile: Profile) -> str:
    of, whole = profile["idle"]["of"], profile["temporal"]["idle"]["share_of_window"]
    note = f"Of {time(of['microseconds'])} in {of['count']:,} gaps, {percent(whole)} of the whole time."
    if profile["device"] == "cpu":
        note += " On a CPU the host is the device: a wait is the time between two operators, in Python and autograd."
    return card("Why is it idle?", note, _parts(profile["idle"], ("host_wait", "kernel_wait", "other"), "gaps"))


def _kernels(profile: Profile) -> str:
    found, what = profile["kernels"], piece(profile)
    note = f"Of {time(found['of']['microseconds'])} in {found['of']['count']:,} {what}s."
    kinds = ", ".join(
        f"{name} {percent(found[kind]['share_of_time'])} ({percent(found[kind]['share_of_count'])} of {what}s)"
        for kind, name in (("compute", "computation"), ("memory", "memory"), ("communication", "communication"))
        if found[kind]["count"]
    )
    groups = [name for name, figure in found["by_group"].items() if figure["count"]]
    body = _parts(found["by_group"], groups, f"{what}s") + f'<p class="note">By kind: {kinds}.</p>'
    return card(f"Which {what}s?", note, body + _memory_kinds(found["by_memory_kind"], what))


def _memory_kinds(figures: Mapping[str, Any], what: str) -> str:
    if not figures:
        return ""
    most = sorted(figures.items(), key=lambda item: -item[1]["microseconds"])[:6]
    rows = [
        f'<tr><th><span class="mono">{text(name)}</span></th><td>{figure["count"]:,}</td>'
        f"<td>{time(figure['microseconds'])}</td><td>{percent(figure['share_of_time'])}</td></tr>"
        for name, figure in most
    ]
    kinds = table(("", f"{what}s", "time", "share"), rows)
    return f"<details><summary>Memory {what}s by kind</summary>{kinds}</details>"


def _launches(profile: Profile) -> str:
    found, on_cpu, what = profile["launches"], profile["device"] == "cpu", piece(profile)
    named = [
        (f"{what}s shorter than {'the wait before them' if on_cpu else 'their launch'}", "short", "kernels"),
        ("waits over 50 µs" if on_cpu else "launches over 50 µs", "slow", "launches"),
        ("delays over 100 µs", "delayed", "delays"),
    ]
    rows = [_row(name, found[short], found["of"][of]) for name, short, of in named if found[short]]
    note = (
        "On a CPU a launch is the wait from one operator to the next, in Python and autograd. "
        "Nothing is delayed: an operator runs when it is called."
        if on_cpu
        else "A captured graph’s launch is shared out among its kernels. Delays overlap with work: a full queue costs "
        "nothing."
    )
    body = table(("", "share of count", "share of time"), rows)
    return card("What does launching cost?", note, body)


def distributions(profile: Profile) -> str:
    """Cards with bars: launches and kernels by duration, and on CUDA kernels by their delay."""
    found, on_cpu, what = profile["launches"], profile["device"] == "cpu", piece(profile)
    launch = ("the wait before them", "waits") if on_cpu else ("their launch", "launches")
    shorter = {one["below"]: one["count"] for one in found["shorter"]}
    bars = _histogram(found["kernels"], lambda one: shorter.get(one["below"], 0) / max(one["count"], 1))
    drawn = [
        (f"How long {what}s take", f"Red: shorter than {launch[0]}.", bars),
        (
            f"How long {launch[1]} take",
            "Red: over 50 µs.",
            _histogram(found["durations"], lambda one: one["below"] > 50),
        ),
    ]
    if found["delays"]:
        bars = _histogram(found["delays"], lambda one: one["below"] > 100)
        drawn.append(("How late kernels start", "From launch to start. Red: over 100 µs.", bars))
    return f'<div class="columns">{"".join(card(*one) for one in drawn)}</div>'


def _row(name: str, figure: Mapping[str, Any], of: Mapping[str, Any]) -> str:
    count, spent = figure["share_of_count"], figure["share_of_time"]
    return (
        f"<tr><th>{text(name)}</th>"
        f"<td><b>{percent(count)}</b>{share(count or 0, 'var(--c1)')}"
        f"<br><small>{figure['count']:,} of {of['count']:,}</small></td>"
        f"<td><b>{percent(spent)}</b>{share(spent or 0, 'var(--c0)')}"
        f"<br><small>{time(figure['microseconds'])} of {time(of['microseconds'])}</small></td></tr>"
    )


def _histogram(bins: Sequence[Mapping[str, float]], red: Callable[[Mapping[str, float]], float]) -> str:
    """Bars of counts by duration; `red` is the share of a bar that is red."""
    most = max((one["count"] for one in bins), default=0) or 1
    columns = "".join(
        f'<div style="height:{100 * one["count"] / most:.1f}%;--red:{100 * red(one):.0f}%" '
        f'title="below {time(one["below"])}: {one["count"]:g}, {time(one["microseconds"])} in all"></div>'
        for one in bins
    )
    ticks = "".join(f"<span>{time(one['below']) if i % 3 == 0 else ''}</span>" for i, one in enumerate(bins))
    return f'<div class="bars">{columns}</div><div class="ticks">{ticks}</div>'
