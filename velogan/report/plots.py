"""What all plots are drawn with: SVG shapes, labels and round marks, for a page or for a file of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

_FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif'
_LIGHT = ("#fff", "#e4dfd7", "#23211e", "#6d6861")
_DARK = ("#1e2025", "#33353c", "#ece9e4", "#9d988f")
_HUES_LIGHT = ("#d9570f", "#2f6fde", "#2c8c4b", "#8a4fd0", "#b8860b", "#0f8b99", "#a3a9b5")
_HUES_DARK = ("#ff8f45", "#6ea2ff", "#5cc97d", "#b98cf5", "#e3b341", "#45c5d3", "#6b7280")


Points = Sequence[tuple[float, float]]


def text_width(text: str, size: float) -> float:
    """About how wide `text` is, in the units of `size`."""
    return 0.56 * size * len(text)


class Drawing:
    """Shapes on `width` x `height`: part of a page (`inline`), or a file with its own colours (`file`).

    The classes of a file's colours are `c0` to `c6`, `roofline`, `saved`, `flow`, `sum`, `ink` and `soft`.
    On a page, `fill` and `stroke` may be any CSS colour. A `title` is shown beside the pointer.
    """

    def __init__(self, width: float, height: float):
        self.width, self.height = width, height
        self._parts: list[str] = []

    def _add(self, tag: str, inside: str = "", **attributes: object) -> None:
        """Adds an element; an attribute that is None or empty is left out."""
        given = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        told = " ".join(f'{name}="{_told(value)}"' for name, value in given.items() if value not in (None, ""))
        self._parts.append(f"<{tag} {told}>{inside}</{tag}>" if inside else f"<{tag} {told}/>")

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        kind: str = "",
        *,
        fill: str | None = None,
        rx: float | None = None,
        opacity: float | None = None,
        title: str = "",
    ) -> None:
        """A filled box; the kind `saved` is outlined."""
        box = {"x": x, "y": y, "width": max(width, 0.0), "height": height}
        self._add("rect", _title(title), **box, class_=kind, fill=fill, rx=rx, opacity=opacity)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        kind: str = "ink",
        size: float | None = 12,
        anchor: str = "start",
        weight: int | None = 400,
    ) -> None:
        """One line of text with its baseline at `y`."""
        look = {"class_": kind, "font_size": size, "text_anchor": anchor, "font_weight": weight}
        self._add("text", escape(text), x=x, y=y, **look)

    def label(self, x: float, y: float, words: str, *, anchor: str, kind: str = "") -> None:
        """One line of text in the page's own size and colour, with its baseline at `y`."""
        self.text(x, y, words, kind=kind, size=None, weight=None, anchor=anchor)

    def grid(self, y: float, *, left: float, right: float) -> None:
        """A level line across a plot."""
        self.line([(left, y), (right, y)], "grid", width=None)

    def line(
        self,
        points: Points,
        kind: str = "",
        *,
        width: float | None = 1.5,
        stroke: str | None = None,
        title: str = "",
    ) -> None:
        """A line through `points`."""
        look = {"class_": f"line {kind}".strip(), "stroke_width": width, "stroke": stroke}
        self._add("polyline", _title(title), points=points, **look)

    def polygon(
        self, points: Points, kind: str = "", *, fill: str | None = None, opacity: float | None = None, title: str = ""
    ) -> None:
        """A filled area within `points`."""
        self._add("polygon", _title(title), points=points, class_=kind, fill=fill, opacity=opacity)

    def dots(self, x: float, y: float, step: float, rows: int, columns: int, *, kind: str, side: float) -> None:
        """`rows` x `columns` squares, `step` apart, the centre of the first at (x, y); `kind` colours lines."""
        lines = "".join(f"M{x - side / 2:.2f} {y + step * row:.2f}h{step * columns:.2f}" for row in range(rows))
        dashes = f"{side:g} {step - side:g}"
        self._add("path", d=lines, class_=f"line {kind}", stroke_width=side, stroke_dasharray=dashes)

    def inline(self, *, label: str = "") -> str:
        """The picture as part of a page, whose style it takes; `label` is what a screen reader says."""
        said = f' aria-label="{escape(label)}"' if label else ""
        return f'<svg viewBox="0 0 {self.width:g} {self.height:g}" role="img"{said}>{"".join(self._parts)}</svg>'

    def file(self, *, title: str) -> str:
        """The picture as a file; `title` is what a screen reader says."""
        body = "\n".join(self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" '
            f'width="{self.width:g}" height="{self.height:g}" role="img">\n<title>{escape(title)}</title>\n'
            f"<style>\nsvg {{ max-width: 100%; height: auto; font-family: {_FONT}; }}\n"
            f"{_colours(_LIGHT, _HUES_LIGHT)}\n"
            f"@media (prefers-color-scheme: dark) {{\n{_colours(_DARK, _HUES_DARK)}\n}}\n"
            f'</style>\n<rect x="0.5" y="0.5" width="{self.width - 1:g}" height="{self.height - 1:g}" rx="12" '
            f'class="card"/>\n{body}\n</svg>\n'
        )


def round_numbers(low: float, high: float) -> list[float]:
    """At most seven round numbers between two."""
    if high <= low:
        return [low]
    step = 10.0 ** math.floor(math.log10((high - low) / 2))
    step *= next(many for many in (0.5, 1, 2, 5, 10) if (high - low) / (many * step) <= 6)
    return [round(number * step, 12) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""


def _told(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, (list, tuple)):
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in value)
    return escape(str(value))


def _colours(base: Sequence[str], hues: Sequence[str]) -> str:
    card, edge, ink, soft = base
    rules = [
        f".card {{ fill: {card}; stroke: {edge}; }}",
        f".ink {{ fill: {ink}; }}",
        f".soft {{ fill: {soft}; }}",
        f".roofline {{ fill: {soft}; }}",
        f".saved {{ fill: none; stroke: {soft}; stroke-dasharray: 3 3; }}",
        f".line.grid {{ stroke: {edge}; }}",
        ".line { fill: none; stroke-linejoin: round; }",
        f".line.flow {{ stroke: {soft}; }}",
        f".sum {{ fill: {card}; stroke: {soft}; }}",
    ]
    rules += [f".c{n} {{ fill: {hue}; }} .line.c{n} {{ fill: none; stroke: {hue}; }}" for n, hue in enumerate(hues)]
    return "\n".join(rules)
