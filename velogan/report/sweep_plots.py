"""Plots of a sweep as SVG, without a script: scores over training, and parallel coordinates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from velogan.report.facts import is_number
from velogan.report.plots import Drawing, Points, round_numbers

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1000, 380, 76, 28, 10, 40
APART = 190
"""At least so far apart are parallel axes: names and values between them stay readable."""
HEAD, FOOT, LONGEST = 48, 352, 22
"""Where parallel axes begin and end, from above, and how many characters of a value are shown."""
FEW = 8
"""With at most so many different numbers an axis marks each of them, else round ones."""
MANY = 40
"""Above so many settings the lines are thinner."""
LINE_HEIGHT = 15

Seeds = Sequence[Sequence[tuple[float, float]]]
"""For each seed (percent of the budget, score)."""


@dataclass(frozen=True)
class Setting:
    """A setting in parallel coordinates: its values in the order of the axes, and its score."""

    name: str
    values: Sequence[Any]
    score: float
    finished: bool = True


@dataclass(frozen=True)
class Scale:
    """`place` gives the share of the axis, from the bottom, at which a value lies; `marks` are (share, label)."""

    place: Callable[[Any], float]
    marks: Sequence[tuple[float, str]]


def curves(settings: Mapping[str, Seeds], hues: Sequence[str]) -> str:
    """A line for the mean over seeds of each setting, a band from the lowest to the highest; empty without scores."""
    bands = {name: _band(seeds) for name, seeds in settings.items()}
    values = [value for band in bands.values() for point in band for value in point[1:]]
    if not values:
        return ""
    low, high = min(values), max(values)
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    low, high = low - margin, high + margin

    def place(percent: float, score: float) -> tuple[float, float]:
        across, up = percent / 100, (score - low) / (high - low)
        return LEFT + (WIDTH - LEFT - RIGHT) * across, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * up

    picture = Drawing(WIDTH, HEIGHT)
    for score in round_numbers(low, high):
        _, y = place(0, score)
        picture.grid(y, left=LEFT, right=WIDTH - RIGHT)
        picture.label(LEFT - 10, y + 4, f"{score:g}", anchor="end")
    for percent in range(0, 101, 20):
        picture.label(place(percent, low)[0], HEIGHT - BOTTOM + 22, f"{percent} %", anchor="middle")
    for band, hue in zip(bands.values(), hues):
        area = [place(x, top) for x, _, _, top in band] + [place(x, bottom) for x, bottom, _, _ in reversed(band)]
        picture.polygon(area, fill=f"color-mix(in srgb, {hue} 16%, transparent)")
    for (name, band), hue in reversed([*zip(bands.items(), hues)]):  # the best one lies on top
        points = [place(x, mean) for x, _, mean, _ in band]
        picture.line(_visible(points), width=2.5, stroke=hue, title=name)
    return picture.inline()


def parallel(fields: Sequence[str], lines: Sequence[Setting], *, better: str) -> str:
    """An axis for each field and one for the score, whose best end is at the top; a line for each setting.

    `lines` are in order, the best one first. They go from orange to blue; those that have not finished are grey.
    """
    axes = [_axis([line.values[number] for line in lines]) for number in range(len(fields))]
    last = _axis([line.score for line in lines])
    axes.append(last if better == "higher" else _turned(last))
    picture = Drawing(parallel_width(len(fields)), FOOT + 14)
    step = (picture.width - 30 - 90) / len(fields)
    thin = 2.2 if len(lines) <= MANY else 1.4
    across = [30 + step * number for number in range(len(axes))]
    finished = [line for line in lines if line.finished]
    for line in reversed([*finished, *(line for line in lines if not line.finished)]):
        shares = [axis.place(value) for axis, value in zip(axes, [*line.values, line.score])]
        points = [(x, _height(share)) for x, share in zip(across, shares)]
        best = line is finished[0] if finished else False
        told = f"{line.name}: {line.score:.4g}" + ("" if line.finished else ", stopped early")
        hue = _ramp(finished.index(line), len(finished)) if line.finished else "var(--line)"
        picture.line(points, width=4.5 if best else thin, stroke=hue, title=told)
    for number, (x, axis, name) in enumerate(zip(across, axes, [*fields, "score"])):
        anchor = "start" if number == 0 else "end" if number == len(fields) else "middle"
        picture.line([(x, HEAD), (x, FOOT)], "axis", width=None)
        picture.label(x - 20 if number == 0 else x + 20 if anchor == "end" else x, 20, name, anchor=anchor, kind="name")
        for share, words in _not_too_near(axis.marks):
            picture.label(x + 7, _height(share) + 4, words, anchor="start", kind="halo")
    return picture.inline()


def parallel_width(fields: int) -> int:
    """How wide parallel coordinates of so many fields are, in SVG units."""
    return max(WIDTH, APART * fields + 120)


def _band(seeds: Seeds) -> list[tuple[float, float, float, float]]:
    """(percent, lowest, mean, highest) at each percent that lies within the scores of all seeds, with lines between."""
    known = [sorted(curve) for curve in seeds if curve]
    first, last = max((one[0][0] for one in known), default=0), min((one[-1][0] for one in known), default=0)
    ats = sorted({percent for curve in known for percent, _ in curve if first <= percent <= last})
    scores = [np.interp(ats, [at for at, _ in curve], [score for _, score in curve]).tolist() for curve in known]
    return [(at, min(here), fmean(here), max(here)) for at, here in zip(ats, zip(*scores))]


def _visible(points: Points) -> Points:
    """A single point as a short line, which is seen."""
    return [(points[0][0] - 4, points[0][1]), points[0]] if len(points) == 1 else points


def _axis(values: Sequence[Any]) -> Scale:
    """Numbers on a linear scale, or a logarithmic one where they are positive and span more than a decade; all else
    evenly."""
    if not all(map(is_number, values)):
        words = list(dict.fromkeys(map(str, values)))
        shares = {word: _share(number, 0, len(words) - 1) for number, word in enumerate(words)}
        return Scale(lambda value: shares[str(value)], [(share, _short(word)) for word, share in shares.items()])
    low, high = min(values), max(values)
    log = low > 0 and high > 10 * low
    scale = math.log if log else float
    marked = sorted(set(values))
    if len(marked) > FEW:
        marked = _round_logarithms(low, high) if log else round_numbers(low, high)

    def place(value: Any) -> float:
        return _share(scale(value), scale(low), scale(high))

    return Scale(place, [(place(value), f"{value:.4g}") for value in marked])


def _turned(axis: Scale) -> Scale:
    return Scale(lambda value: 1 - axis.place(value), [(1 - share, label) for share, label in axis.marks])


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5


def _height(share: float) -> float:
    return FOOT - (FOOT - HEAD) * share


def _round_logarithms(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between two positive numbers."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [mark for power in powers for many in (1, 2, 5) if low <= (mark := float(f"{many}e{power}")) <= high]


def _not_too_near(marks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Marks whose labels do not lie on each other."""
    kept: list[tuple[float, str]] = []
    for share, words in sorted(marks):
        if not kept or (share - kept[-1][0]) * (FOOT - HEAD) >= LINE_HEIGHT:
            kept.append((share, words))
    return kept


def _ramp(rank: int, count: int) -> str:
    """From the best one's colour to the worst one's."""
    return f"color-mix(in oklab, var(--c0) {100 - 100 * rank / max(count - 1, 1):.0f}%, var(--c1))"


def _short(word: str) -> str:
    return word if len(word) <= LONGEST else f"{word[: LONGEST - 1]}…"
