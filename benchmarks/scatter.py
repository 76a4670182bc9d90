"""Size against score, as Figures 3 to 6 of CycleGANAS draw them: a panel for each set and direction.

    python -m benchmarks.scatter OUT/sets.json OUT/scatter.svg

OUT is what `benchmarks/studies/searches.py` made of its paper.yaml. Sizes are parameters of the direction's
generator over C64's. Scores are distances that are left over C64's mean, by SqueezeNet where it judged: 1 as good as
C64, lower is better. The paper's are FIDs over C64's mean, of those that its text gives; its sizes are in its figures
alone, so each is a dashed line. Dots are runs, a seed each.
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
WAYS = {"a2b": "A to B", "b2a": "B to A"}
PAPER = {
    ("horse2zebra", "a2b"): {"N64": 38.05 / 45.78, "C'64": 45.19 / 45.78},
    ("horse2zebra", "b2a"): {"N64": 131.44 / 133.42, "C'64": 132.87 / 133.42},
}
"""Of section 4.3, Figure 6: mean FIDs over C64's."""

HUES = {"C": 0, "OF": 1, "TF": 2, "TH": 4, "THS": 5, "random": 3}
"""By the first word of a recipe's name, without its size."""

Panel = dict[str, list[tuple[float, float]]]
"""By recipe, a point for each seed."""

_WIDE, _HIGH, _LEFT, _TOP, _BELOW = 420, 250, 46, 34, 40


def main(source: Path, target: Path) -> None:
    target.write_text(draw(panels(json.loads(source.read_text(encoding="utf-8")))), encoding="utf-8")


def panels(runs: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Panel]:
    """By set and direction. ValueError where C64 has no score there."""
    found: dict[tuple[str, str], Panel] = {}
    for run in (run for run in runs if not run["reason"]):
        for way, figures in run["ways"].items():
            closed = figures.get("closed (SqueezeNet)") or figures.get("closed")
            if closed is not None:
                point = _parameters(Path(run["run"]), way), 1 - closed["value"]
                found.setdefault((run["set"], way), {}).setdefault(run["recipe"], []).append(point)
    return {place: relative(panel, where=place) for place, panel in found.items()}


def relative(panel: Panel, *, where: tuple[str, str]) -> Panel:
    """Sizes and distances over those of C64."""
    if C64 not in panel:
        raise ValueError(f"{' '.join(where)}: {C64} has no score, by which the others are divided")
    x, y = (fmean(values) for values in zip(*panel[C64]))
    return {name: [(one / x, other / y) for one, other in points] for name, points in panel.items()}


def _parameters(run: Path, way: Any) -> float:
    spec = read_config(run).spec
    channels = [spec.channels[letter] for letter in domains_of(way)]
    return float(network_size(spec.generators[way], in_channels=channels[0], out_channels=channels[1]).parameters)


def draw(found: Mapping[tuple[str, str], Panel]) -> str:
    """All panels as SVG, two beside each other. ValueError where there are none."""
    if not found:
        raise ValueError("no run has a distance to draw: give the sets.json of a plan whose runs were scored")
    rows = -(-len(found) // 2)
    picture = Drawing(2 * _WIDE, rows * _HIGH + 30)
    for number, (place, panel) in enumerate(found.items()):
        _panel(picture, place, panel, left=_WIDE * (number % 2), top=_HIGH * (number // 2))
    x = 16.0
    for name, hue in HUES.items():
        picture.rect(x, rows * _HIGH + 6, 10, 10, f"c{hue}")
        picture.text(x + 15, rows * _HIGH + 15, name, css_class="soft")
        x += 31 + estimate_text_width(name, 12)
    return picture.to_svg_file(title="Size against score of searched and hand-made generators")


def _panel(picture: Drawing, place: tuple[str, str], panel: Panel, *, left: float, top: float) -> None:
    theirs = PAPER.get(place, {})
    points = [point for some in panel.values() for point in some]
    widest = 1.08 * max(x for x, _ in points)
    highest = 1.08 * max([y for _, y in points] + list(theirs.values()))
    lowest = min(0.0, 1.08 * min(y for _, y in points))
    wide, high = _WIDE - _LEFT - 16, _HIGH - _TOP - _BELOW

    def at(x: float, y: float) -> tuple[float, float]:
        return left + _LEFT + wide * x / widest, top + _TOP + high * (highest - y) / (highest - lowest)

    picture.text(left + 16, top + 22, f"{place[0]}, {WAYS[place[1]]}", size=13, weight=600)
    for y in round_ticks(lowest, highest):
        picture.line([at(0, y), at(widest, y)], "grid", width=1)
        picture.text(at(0, y)[0] - 6, at(0, y)[1] + 4, f"{y:g}", css_class="soft", size=11, anchor="end")
    for x in round_ticks(0, widest):
        picture.text(at(x, lowest)[0], at(0, lowest)[1] + 15, f"{x:g}", css_class="soft", size=11, anchor="middle")
    picture.text(left + _LEFT + wide, top + _HIGH - 12, "size, C64 = 1", css_class="soft", size=11, anchor="end")
    for name, y in theirs.items():
        _, height = at(0, y)
        picture.rect(left + _LEFT, height, wide, 0.01, "saved", title=f"the paper's {name}: {y:.3f}")
        picture.text(left + _LEFT + wide, height - 3, f"paper's {name}", css_class="soft", size=10, anchor="end")
    for name, some in panel.items():
        for x, y in (at(*point) for point in some):
            picture.rect(x - 4, y - 4, 8, 8, f"c{hue_of(name)}", rx=4, title=name)


def hue_of(recipe: str) -> int:
    """The colour's number: that of what the recipe's name begins with."""
    kind = recipe.partition("-")[0].rstrip("0123456789")
    return HUES.get(kind, 6)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
