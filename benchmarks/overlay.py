"""Draw loss curves of several modes, as written by `benchmarks/curves.py`, in one plot.

    python -m benchmarks.overlay curves.json curves.svg

The file holds a list of `mode`, `images` and `loss`, the last two lists of equal length.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from velogan.report.plots import Drawing, estimate_text_width

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 480, 320, 44, 16, 56, 62


def draw(curves: Sequence[dict[str, Any]]) -> str:
    """Draw the plot as SVG. Raises ValueError if there is nothing to draw."""
    if not curves or not all(curve["images"] for curve in curves):
        raise ValueError("there are no curves to draw: give the output of benchmarks/curves.py")
    picture = Drawing(_WIDTH, _HEIGHT)
    picture.text(16, 26, "One training, computed in several modes", size=16, weight=600)
    picture.text(16, 45, "generators' loss by images seen, from one seed", css_class="soft")
    right = max(max(curve["images"]) for curve in curves)
    top = max(max(curve["loss"]) for curve in curves)
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + wide * x / right, _TOP + high * (1 - y / top)

    for share in (0, 0.5, 1):
        x, y = place(right * share, top * share)
        picture.text(_LEFT - 6, y + 4, f"{top * share:.2g}", css_class="soft", size=11, anchor="end")
        picture.text(x, _HEIGHT - _BOTTOM + 16, f"{right * share:,.0f}", css_class="soft", size=11, anchor="middle")
        picture.line([(_LEFT, y), (_WIDTH - _RIGHT, y)], "grid", width=1)
    for number, curve in enumerate(curves):  # each is thinner than the one below it, which stays visible
        points = [place(*point) for point in zip(curve["images"], curve["loss"])]
        picture.line(points, f"c{number}", width=1.2 + 1.4 * (len(curves) - 1 - number))
    x = 16.0
    for number, curve in enumerate(curves):
        picture.rect(x, _HEIGHT - 24, 10, 10, f"c{number}")
        picture.text(x + 15, _HEIGHT - 15, curve["mode"], css_class="soft")
        x += 31 + estimate_text_width(curve["mode"], 12)
    return picture.to_svg_file(title="Loss curves of " + ", ".join(curve["mode"] for curve in curves))


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(draw(json.loads(source.read_text())))
