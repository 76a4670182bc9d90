"""Draw plots as SVG, for a page or for a file: shapes, labels and round axis ticks."""

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


def estimate_text_width(text: str, size: float) -> float:
    """Return the approximate width of `text` at font size `size`."""
    return 0.56 * size * len(text)


class Drawing:
    """An SVG drawing of `width` x `height` units: part of a page (`to_inline_svg`) or a file (`to_svg_file`).

    Shapes are coloured by a `css_class`. A file defines the classes `c0` to `c6`, `roofline`, `saved`, `flow`, `sum`,
    `ink` and `soft`; on a page, `fill` may be any CSS colour. A `title` is shown as a tooltip.
    """

    def __init__(self, width: float, height: float):
        self.width, self.height = width, height
        self._parts: list[str] = []

    def _add(self, tag: str, inside: str = "", **attributes: object) -> None:
        """Add an element; attributes that are None or empty are omitted."""
        present = {name: value for name, value in attributes.items() if value not in (None, "")}
        names = {name: name.rstrip("_").replace("_", "-") for name in present}
        formatted = " ".join(f'{names[name]}="{_format_attribute(value)}"' for name, value in present.items())
        self._parts.append(f"<{tag} {formatted}>{inside}</{tag}>" if inside else f"<{tag} {formatted}/>")

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        css_class: str = "",
        *,
        fill: str | None = None,
        rx: float | None = None,
        opacity: float | None = None,
        title: str = "",
    ) -> None:
        """Add a filled rectangle, or with the class `saved` a dashed outline."""
        box = {"x": x, "y": y, "width": max(width, 0.0), "height": height}
        self._add("rect", _title(title), **box, class_=css_class, fill=fill, rx=rx, opacity=opacity)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        css_class: str = "ink",
        size: float | None = 12,
        anchor: str = "start",
        weight: int | None = 400,
    ) -> None:
        """Add a line of text with its baseline at `y`."""
        style = {"class_": css_class, "font_size": size, "text_anchor": anchor, "font_weight": weight}
        self._add("text", escape(text), x=x, y=y, **style)

    def label(self, x: float, y: float, text: str, *, anchor: str) -> None:
        """Add a line of text in the size and colour of the page, with its baseline at `y`."""
        self.text(x, y, text, css_class="", size=None, weight=None, anchor=anchor)

    def line(self, points: Points, css_class: str, *, width: float | None = 1.5) -> None:
        """Add a line through `points`."""
        self._add("polyline", points=points, class_=f"line {css_class}", stroke_width=width)

    def polygon(self, points: Points, css_class: str, *, title: str = "") -> None:
        """Add a filled polygon with the corners `points`."""
        self._add("polygon", _title(title), points=points, class_=css_class)

    def dot_grid(
        self, x: float, y: float, step: float, rows: int, columns: int, *, css_class: str, side: float
    ) -> None:
        """Add `rows` x `columns` squares of side `side`, `step` apart, the first one centred at (x, y)."""
        lines = "".join(f"M{x - side / 2:.2f} {y + step * row:.2f}h{step * columns:.2f}" for row in range(rows))
        dashes = f"{side:g} {step - side:g}"
        self._add("path", d=lines, class_=f"line {css_class}", stroke_width=side, stroke_dasharray=dashes)

    def to_inline_svg(self, *, label: str = "") -> str:
        """Return the drawing as an SVG element, styled by the page's CSS; `label`: text for screen readers."""
        aria = f' aria-label="{escape(label)}"' if label else ""
        return f'<svg viewBox="0 0 {self.width:g} {self.height:g}" role="img"{aria}>{"".join(self._parts)}</svg>'

    def to_svg_file(self, *, title: str) -> str:
        """Return the drawing as the content of an SVG file; `title`: text for screen readers."""
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


def round_ticks(low: float, high: float) -> list[float]:
    """Return at most seven round numbers from `low` to `high`, for an axis."""
    if high <= low:
        return [low]
    step = 10.0 ** math.floor(math.log10((high - low) / 2))
    step *= next(factor for factor in (0.5, 1, 2, 5, 10) if (high - low) / (factor * step) <= 6)
    return [round(number * step, 12) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""


def _format_attribute(value: object) -> str:
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
