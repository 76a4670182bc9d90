"""The plot of a sweep as SVG, without a script: scores over training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from velogan.report.plots import Drawing, Points, round_numbers

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1000, 380, 76, 28, 10, 40

Seeds = Sequence[Sequence[tuple[float, float]]]
"""For each seed (percent of the budget, score)."""


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
