"""Plots of a profile as HTML and SVG, without a script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from velogan.report.plots import Drawing, round_numbers

Point = tuple[float, float]

WIDTH, HALF = 1000, 540
"""Widths of pictures in SVG units: across the page, and in one of two columns."""


def key(hue: str | None) -> str:
    """The little square before a name in a legend."""
    return f'<span class="legend-key" style="--hue:{hue}"></span>' if hue else '<span class="legend-key idle"></span>'


def share(value: float, hue: str) -> str:
    """A small bar beside a number."""
    return f'<span class="share" style="--hue:{hue}"><i style="width:{100 * min(value, 1):.2f}%"></i></span>'


def strip(lanes: Sequence[str], spans: Sequence[tuple[int, float, float, str, str]], *, length: float) -> str:
    """A timeline: `spans` are (lane, start, end, colour, title), `length` is the whole time; times are in us."""
    left, row, gap = 86, 22, 4
    height = len(lanes) * (row + gap)
    x = (WIDTH - left) / length
    picture = Drawing(WIDTH, height + 22)
    for number, name in enumerate(lanes):
        y = number * (row + gap)
        picture.label(left - 8, y + 15, name, anchor="end")
        picture.grid(y + row + 2, left=left, right=WIDTH)
    for lane, start, end, hue, title in spans:
        width = max(x * (end - start), 0.6)
        picture.rect(left + x * start, lane * (row + gap), width, row, fill=hue, rx=2, title=title)
    _axis(picture, length, left=left, width=WIDTH - left, y=height + 16)
    return picture.inline()


def areas(times: Sequence[float], layers: Mapping[str, tuple[Sequence[float], str]], *, unit: str) -> str:
    """Stacked areas over `times` in us; each layer has values, in `unit`, and a colour."""
    left, height, top = 72, 240, 8
    length = max(times[-1], 1e-9)
    most = max(map(sum, zip(*(values for values, _ in layers.values())))) or 1.0
    x, y = (HALF - left - 10) / length, (height - top) / most

    def point(time: float, value: float) -> Point:
        return left + x * time, height - y * value

    picture = Drawing(HALF, height + 24)
    for at in round_numbers(0, most):
        picture.grid(height - y * at, left=left, right=HALF)
        picture.label(left - 8, height - y * at + 4, f"{at:g} {unit}", anchor="end")
    below = [0.0] * len(times)
    for name, (values, hue) in layers.items():
        above = [low + value for low, value in zip(below, values)]
        # a level holds until the next moment
        upper = [corner for i in range(len(times)) for corner in _corners(times, above, i, point)]
        lower = [corner for i in range(len(times)) for corner in _corners(times, below, i, point)]
        picture.polygon([*upper, *reversed(lower)], fill=hue, title=name)
        below = above
    _axis(picture, length, left=left, width=HALF - left - 10, y=height + 18)
    return picture.inline()


def _corners(
    times: Sequence[float], values: Sequence[float], i: int, point: Callable[[float, float], Point]
) -> list[Point]:
    corners = [point(times[i], values[i])]
    return [point(times[i], values[i - 1]), *corners] if i else corners


def _axis(picture: Drawing, length: float, *, left: float, width: float, y: float) -> None:
    """Times up to `length` us."""
    scale, unit = next(
        (scale, unit) for scale, unit in ((1e6, "s"), (1e3, "ms"), (1, "µs")) if scale == 1 or length >= 2 * scale
    )
    *marks, last = round_numbers(0, length / scale)
    for at in marks:
        picture.label(left + width * at * scale / length, y, f"{at:g}", anchor="middle")
    picture.label(left + width * last * scale / length, y, f"{last:g} {unit}", anchor="end")
