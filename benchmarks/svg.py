"""A small SVG picture that is readable on light and dark pages and on a phone."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif'
_LIGHT = ("#fff", "#e4dfd7", "#23211e", "#6d6861")
_DARK = ("#1e2025", "#33353c", "#ece9e4", "#9d988f")
_HUES_LIGHT = ("#d9570f", "#2f6fde", "#2c8c4b", "#8a4fd0", "#b8860b", "#0f8b99", "#a3a9b5")
_HUES_DARK = ("#ff8f45", "#6ea2ff", "#5cc97d", "#b98cf5", "#e3b341", "#45c5d3", "#6b7280")


def text_width(text: str, size: float) -> float:
    """About how wide `text` is, in the units of `size`."""
    return 0.56 * size * len(text)


class Picture:
    """Shapes on a card of `width` x `height`. Colours are classes: `c0` to `c6`, `roofline`, `saved`, `ink`, `soft`."""

    def __init__(self, width: float, height: float):
        self.width, self.height = width, height
        self._parts: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """A filled box; `saved` is outlined."""
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" class="{kind}"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        kind: str = "ink",
        size: float = 12,
        anchor: str = "start",
        weight: int = 400,
    ) -> None:
        """One line of text with its baseline at `y`."""
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" font-size="{size}" text-anchor="{anchor}" '
            f'font-weight="{weight}">{escape(text)}</text>'
        )

    def line(self, points: Sequence[tuple[float, float]], kind: str, *, width: float = 1.5) -> None:
        """A line through `points`."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polyline points="{path}" class="line {kind}" stroke-width="{width}"/>')

    def svg(self, *, title: str) -> str:
        """The whole file; `title` is what a screen reader says."""
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
    ]
    rules += [f".c{n} {{ fill: {hue}; }} .line.c{n} {{ fill: none; stroke: {hue}; }}" for n, hue in enumerate(hues)]
    return "\n".join(rules)
