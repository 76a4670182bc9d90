"""Size against score, as in Figures 3 to 6 of CycleGANAS: a panel for each set and direction.

    python -m benchmarks.scatter OUT/sets.json OUT/scatter.svg

OUT is the output of `benchmarks/studies/searches.py` with its paper.yaml. Sizes are parameters of the direction's
generator divided by those of C64. Scores are remaining distances divided by the mean of C64, by SqueezeNet if it was
used: 1 is as good as C64, lower is better. Dashed lines are the paper's FIDs divided by that of C64. Dots are runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from velogan.config import read_config
from velogan.networks.sizes import network_size
from velogan.report.plots import Drawing, estimate_text_width, round_ticks
from velogan.types import domains_of

C64 = "C64"
TITLES = {"a2b": "A to B", "b2a": "B to A"}
PAPER = {
    ("horse2zebra", "a2b"): {"N64": 38.05 / 45.78, "C'64": 45.19 / 45.78},
    ("horse2zebra", "b2a"): {"N64": 131.44 / 133.42, "C'64": 132.87 / 133.42},
}
"""Section 4.3, Figure 6: mean FIDs divided by that of C64."""

HUES = {"C": 0, "OF": 1, "TF": 2, "TH": 4, "THS": 5, "random": 3}
"""Colours by the first word of a recipe's name, without its size."""

Panel = dict[str, list[tuple[float, float]]]
"""Points by recipe, one for each seed."""

_WIDE, _HIGH, _LEFT, _TOP, _BELOW = 420, 250, 46, 34, 40


def main(source: Path, target: Path) -> None:
    target.write_text(draw(make_panels(json.loads(source.read_text(encoding="utf-8")))), encoding="utf-8")


def make_panels(runs: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Panel]:
    """Return the panels by set and direction. Raises ValueError if C64 has no score in one."""
    grouped: dict[tuple[str, str], Panel] = {}
    for run in (run for run in runs if not run["reason"]):
        for direction, metrics in run["ways"].items():
            closed = metrics.get("closed (SqueezeNet)") or metrics.get("closed")
            if closed is not None:
                point = _parameters(Path(run["run"]), direction), 1 - closed["value"]
                grouped.setdefault((run["set"], direction), {}).setdefault(run["recipe"], []).append(point)
    return {place: relative(panel, where=place) for place, panel in grouped.items()}


def relative(panel: Panel, *, where: tuple[str, str]) -> Panel:
    """Divide sizes and distances by the means of C64."""
    if C64 not in panel:
        raise ValueError(f"{' '.join(where)}: {C64} has no score, by which the others are divided")
    x, y = (fmean(values) for values in zip(*panel[C64]))
    return {name: [(size / x, distance / y) for size, distance in points] for name, points in panel.items()}


def _parameters(run: Path, direction: Any) -> float:
    spec = read_config(run).spec
    channels = [spec.channels[letter] for letter in domains_of(direction)]
    return float(network_size(spec.generators[direction], in_channels=channels[0], out_channels=channels[1]).parameters)


def draw(panels: Mapping[tuple[str, str], Panel]) -> str:
    """Draw all panels as SVG, two in a row. Raises ValueError if there are none."""
    if not panels:
        raise ValueError("no run has a distance to draw: give the sets.json of a plan whose runs were scored")
    rows = -(-len(panels) // 2)
    picture = Drawing(2 * _WIDE, rows * _HIGH + 30)
    for number, (place, panel) in enumerate(panels.items()):
        _panel(picture, place, panel, left=_WIDE * (number % 2), top=_HIGH * (number // 2))
    x = 16.0
    for name, hue in HUES.items():
        picture.rect(x, rows * _HIGH + 6, 10, 10, f"c{hue}")
        picture.text(x + 15, rows * _HIGH + 15, name, css_class="soft")
        x += 31 + estimate_text_width(name, 12)
    return picture.to_svg_file(title="Size against score of searched and hand-made generators")


def _panel(picture: Drawing, place: tuple[str, str], panel: Panel, *, left: float, top: float) -> None:
    paper = PAPER.get(place, {})
    points = [point for recipe_points in panel.values() for point in recipe_points]
    widest = 1.08 * max(x for x, _ in points)
    highest = 1.08 * max([y for _, y in points] + list(paper.values()))
    lowest = min(0.0, 1.08 * min(y for _, y in points))
    wide, high = _WIDE - _LEFT - 16, _HIGH - _TOP - _BELOW

    def at(x: float, y: float) -> tuple[float, float]:
        return left + _LEFT + wide * x / widest, top + _TOP + high * (highest - y) / (highest - lowest)

    picture.text(left + 16, top + 22, f"{place[0]}, {TITLES[place[1]]}", size=13, weight=600)
    for y in round_ticks(lowest, highest):
        picture.line([at(0, y), at(widest, y)], "grid", width=1)
        picture.text(at(0, y)[0] - 6, at(0, y)[1] + 4, f"{y:g}", css_class="soft", size=11, anchor="end")
    for x in round_ticks(0, widest):
        picture.text(at(x, lowest)[0], at(0, lowest)[1] + 15, f"{x:g}", css_class="soft", size=11, anchor="middle")
    picture.text(left + _LEFT + wide, top + _HIGH - 12, "size, C64 = 1", css_class="soft", size=11, anchor="end")
    for name, y in paper.items():
        _, height = at(0, y)
        picture.rect(left + _LEFT, height, wide, 0.01, "saved", title=f"the paper's {name}: {y:.3f}")
        picture.text(left + _LEFT + wide, height - 3, f"paper's {name}", css_class="soft", size=10, anchor="end")
    for name, recipe_points in panel.items():
        for x, y in (at(*point) for point in recipe_points):
            picture.rect(x - 4, y - 4, 8, 8, f"c{hue_of(name)}", rx=4, title=name)


def hue_of(recipe: str) -> int:
    """Return the number of the colour of a recipe, by the first word of its name."""
    kind = recipe.partition("-")[0].rstrip("0123456789")
    return HUES.get(kind, 6)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
