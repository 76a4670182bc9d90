"""Plot the scores of a sweep over training, as SVG without a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from velogan.report.plots import Drawing, Points, round_ticks

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1000, 380, 76, 28, 10, 40

Seeds = Sequence[Sequence[tuple[float, float]]]
"""For each seed, points of (percent of the budget, score)."""


def plot_curves(settings: Mapping[str, Seeds], hues: Sequence[str]) -> str:
    """Plot the mean over seeds of each setting, and a band from the lowest to the highest; empty without scores."""
    bands = {name: _band(seeds) for name, seeds in settings.items()}
    values = [value for band in bands.values() for point in band for value in point[1:]]
    if not values:
        return ""
    low, high = min(values), max(values)
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    low, high = low - margin, high + margin

    def position(percent: float, score: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * percent / 100
        return x, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (score - low) / (high - low)

    drawing = Drawing(WIDTH, HEIGHT)
    for score in round_ticks(low, high):
        _, y = position(0, score)
        drawing.gridline(y, left=LEFT, right=WIDTH - RIGHT)
        drawing.label(LEFT - 10, y + 4, f"{score:g}", anchor="end")
    for percent in range(0, 101, 20):
        drawing.label(position(percent, low)[0], HEIGHT - BOTTOM + 22, f"{percent} %", anchor="middle")
    for band, hue in zip(bands.values(), hues):
        area = [position(x, top) for x, _, _, top in band] + [position(x, bottom) for x, bottom, _, _ in reversed(band)]
        drawing.polygon(area, fill=f"color-mix(in srgb, {hue} 16%, transparent)")
    for (name, band), hue in reversed([*zip(bands.items(), hues)]):  # the best one lies on top
        points = [position(x, mean) for x, _, mean, _ in band]
        drawing.line(_visible(points), width=2.5, stroke=hue, title=name)
    return drawing.to_inline_svg()


def _band(seeds: Seeds) -> list[tuple[float, float, float, float]]:
    """Return (percent, lowest, mean, highest) of the interpolated seeds, in the range that all of them cover."""
    curves = [sorted(points) for points in seeds if points]
    first = max((points[0][0] for points in curves), default=0)
    last = min((points[-1][0] for points in curves), default=0)
    percents = sorted({percent for points in curves for percent, _ in points if first <= percent <= last})
    scores = [np.interp(percents, [x for x, _ in points], [y for _, y in points]).tolist() for points in curves]
    return [(percent, min(column), fmean(column), max(column)) for percent, column in zip(percents, zip(*scores))]


def _visible(points: Points) -> Points:
    """Return a single point as a short line, so that it is visible."""
    return [(points[0][0] - 4, points[0][1]), points[0]] if len(points) == 1 else points
