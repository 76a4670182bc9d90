"""Draws where a step's time goes, and what each change bought, from `velogan bench --waterfall --json`.

    velogan bench --waterfall --only resnet_9 --json > bench.json
    python benchmarks/waterfall.py bench.json waterfall.svg

Each row of the first case has a bar as long as the step, divided by what ran. The outline beyond the bar is the time
saved against the row above. The last bar is the roofline. The file may hold other lines; the last one counts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from velogan.report.svg import Picture, text_width

_WIDTH, _LEFT, _RIGHT = 480, 16, 16
_ROW, _BAR, _TOP = 46, 18, 66
_CASE = ("network", "discriminator", "image_size", "batch_size", "method")


def draw(result: dict[str, Any]) -> str:
    """The picture as SVG. Raises `ValueError` if the result has no rows."""
    if not result.get("rows"):
        raise ValueError("there are no rows to draw: give the output of `velogan bench --waterfall --json`")
    case = {name: result["rows"][0][name] for name in _CASE}
    rows = [row for row in result["rows"] if all(row[name] == case[name] for name in _CASE)]
    roofline = next(one for one in result["rooflines"] if all(one[name] == case[name] for name in _CASE))
    groups = [name for name in rows[0]["where"] if any(row["where"][name] >= 0.005 for row in rows)]
    longest = max(row["step_ms"] for row in rows)
    legend = _legend_rows(groups)
    picture = Picture(_WIDTH, _TOP + _ROW * (len(rows) + 1) + 22 * len(legend) + 14)
    picture.text(_LEFT, 26, f"One training step, {_name(case)}", size=16, weight=600)
    picture.text(_LEFT, 46, f"{result['machine']['device']}; milliseconds", kind="soft", size=12)
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    y, before = _TOP, None
    for index, row in enumerate(rows):
        _row(picture, y, row, first=index == 0, before=before, scale=scale, groups=groups)
        y, before = y + _ROW, row["step_ms"]
    picture.text(_LEFT, y + 12, "roofline: its convolutions alone", size=13)
    picture.text(_WIDTH - _RIGHT, y + 12, _ms(roofline["ms"]), size=13, anchor="end", weight=600)
    picture.rect(_LEFT, y + 18, roofline["ms"] * scale, _BAR, "roofline")
    y += _ROW + 10
    for line in legend:
        x = _LEFT
        for name in line:
            picture.rect(x, y - 9, 10, 10, f"c{groups.index(name)}")
            picture.text(x + 15, y, name, kind="soft", size=12)
            x += 15 + text_width(name, 12) + 16
        y += 22
    return picture.file(title=f"What a training step of {_name(case)} spends its time on, change by change")


def _row(
    picture: Picture,
    y: float,
    row: dict[str, Any],
    *,
    first: bool,
    before: float | None,
    scale: float,
    groups: list[str],
) -> None:
    took = row["step_ms"]
    picture.text(_LEFT, y + 12, row["mode"] if first else f"+ {row['mode']}", size=13)
    note = "" if before is None or first else f"{'−' if took <= before else '+'}{_ms(abs(before - took))}  "
    picture.text(_WIDTH - _RIGHT, y + 12, _ms(took), size=13, anchor="end", weight=600)
    picture.text(_WIDTH - _RIGHT - text_width(_ms(took), 14) - 10, y + 12, note.strip(), kind="soft", anchor="end")
    x = float(_LEFT)
    for number, name in enumerate(groups):
        width = took * row["where"][name] * scale
        picture.rect(x, y + 18, width, _BAR, f"c{number}")
        x += width
    if before is not None and took < before:
        picture.rect(_LEFT + took * scale, y + 18, (before - took) * scale, _BAR, "saved")


def _legend_rows(names: list[str]) -> list[list[str]]:
    rows: list[list[str]] = [[]]
    x = 0.0
    for name in names:
        width = 31 + text_width(name, 12)
        if rows[-1] and x + width > _WIDTH - _LEFT - _RIGHT:
            rows.append([])
            x = 0.0
        rows[-1].append(name)
        x += width
    return rows


def _name(case: dict[str, Any]) -> str:
    network = case["network"].replace("resnet_", "ResNet-").replace("unet_", "U-Net ")
    return f"{network}, {case['image_size']}×{case['image_size']}, batch {case['batch_size']}"


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def last_object(text: str) -> dict[str, Any]:
    """The JSON object of the last line that is not empty."""
    return json.loads([line for line in text.splitlines() if line.strip()][-1])


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(draw(last_object(source.read_text())))
