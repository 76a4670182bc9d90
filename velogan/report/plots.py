"""Pictures of a profile as HTML and SVG, without a script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from velogan.report.sections import text

WIDTH, HALF = 1000, 540
"""Widths of pictures in SVG units: across the page, and in one of two columns."""


@dataclass(frozen=True)
class Part:
    """A share of a bar: `hue` is a CSS colour, or None for hatching (idle time)."""

    name: str
    share: float
    hue: str | None


def key(hue: str | None) -> str:
    """The little square before a name in a legend."""
    return f'<span class="legend-key" style="--hue:{hue}"></span>' if hue else '<span class="legend-key idle"></span>'


def stack(parts: Iterable[Part]) -> str:
    """One bar of parts side by side; shares are of the whole bar."""
    pieces = "".join(
        f'<i class="{"" if part.hue else "idle"}" style="flex:{part.share:.5f} 0 0;--hue:{part.hue}"'
        f' title="{text(part.name)}: {part.share:.1%}"></i>'
        for part in parts
        if part.share > 0
    )
    return f'<div class="stack">{pieces}</div>'


def share(value: float, hue: str) -> str:
    """A small bar beside a number."""
    return f'<span class="share" style="--hue:{hue}"><i style="width:{100 * min(value, 1):.2f}%"></i></span>'


def strip(lanes: Sequence[str], spans: Sequence[tuple[int, float, float, str, str]], *, length: float) -> str:
    """A timeline: `spans` are (lane, start, end, colour, title), `length` is the whole time; times are in us."""
    left, row, gap = 86, 22, 4
    height = len(lanes) * (row + gap)
    x = (WIDTH - left) / length
    marks = [
        f'<text x="{left - 8}" y="{number * (row + gap) + 15}" text-anchor="end">{text(name)}</text>'
        f'<line class="grid" x1="{left}" x2="{WIDTH}" y1="{number * (row + gap) + row + 2}" '
        f'y2="{number * (row + gap) + row + 2}"/>'
        for number, name in enumerate(lanes)
    ]
    marks += [
        f'<rect x="{left + x * start:.2f}" y="{lane * (row + gap)}" width="{max(x * (end - start), 0.6):.2f}" '
        f'height="{row}" rx="2" fill="{hue}"><title>{text(title)}</title></rect>'
        for lane, start, end, hue, title in spans
    ]
    marks += _axis(length, left=left, width=WIDTH - left, y=height + 16)
    return f'<svg viewBox="0 0 {WIDTH} {height + 22}" role="img">{"".join(marks)}</svg>'


def areas(times: Sequence[float], layers: Mapping[str, tuple[Sequence[float], str]], *, unit: str) -> str:
    """Stacked areas over `times` in us; each layer has values, in `unit`, and a colour."""
    left, height, top = 72, 240, 8
    length = max(times[-1], 1e-9)
    most = max(map(sum, zip(*(values for values, _ in layers.values())))) or 1.0
    steps = [at for at, _ in _ticks(most, "")]
    x, y = (HALF - left - 10) / length, (height - top) / most

    def point(time: float, value: float) -> str:
        return f"{left + x * time:.1f},{height - y * value:.1f}"

    marks = [
        f'<line class="grid" x1="{left}" x2="{HALF}" y1="{height - y * at:.1f}" y2="{height - y * at:.1f}"/>'
        f'<text x="{left - 8}" y="{height - y * at + 4:.1f}" text-anchor="end">{at:g} {unit}</text>'
        for at in steps
    ]
    below = [0.0] * len(times)
    for name, (values, hue) in layers.items():
        above = [low + value for low, value in zip(below, values)]
        # a level holds until the next moment
        upper = [corner for i in range(len(times)) for corner in _corners(times, above, i, point)]
        lower = [corner for i in range(len(times)) for corner in _corners(times, below, i, point)]
        outline = " ".join([*upper, *reversed(lower)])
        marks.append(f'<polygon points="{outline}" fill="{hue}"><title>{text(name)}</title></polygon>')
        below = above
    marks += _axis(length, left=left, width=HALF - left - 10, y=height + 18)
    return f'<svg viewBox="0 0 {HALF} {height + 24}" role="img">{"".join(marks)}</svg>'


def _corners(
    times: Sequence[float], values: Sequence[float], i: int, point: Callable[[float, float], str]
) -> list[str]:
    corners = [point(times[i], values[i])]
    return [point(times[i], values[i - 1]), *corners] if i else corners


def _axis(length: float, *, left: float, width: float, y: float) -> list[str]:
    """Times up to `length` us."""
    scale, unit = next(
        (scale, unit) for scale, unit in ((1e6, "s"), (1e3, "ms"), (1, "µs")) if scale == 1 or length >= 2 * scale
    )
    return [
        f'<text x="{left + width * at * scale / length:.1f}" y="{y}" text-anchor="{"end" if last else "middle"}">'
        f"{at:g}{last}</text>"
        for at, last in _ticks(length / scale, unit)
    ]


def _ticks(length: float, unit: str) -> list[tuple[float, str]]:
    """Round numbers from 0 to `length`, about six of them; the last carries the unit."""
    step = next(m * 10.0**e for e in range(-6, 12) for m in (1, 2, 5) if length / (m * 10.0**e) <= 6.5)
    marks = [round(number * step, 6) for number in range(int(length / step + 1e-9) + 1)]
    return [(mark, f" {unit}" if mark == marks[-1] and unit else "") for mark in marks]
