"""Measure and draw the time of a step by kind of operation after each optimisation, from the reference to the default.

    python -m benchmarks.waterfall resnet_9 waterfall.svg

The first argument is a value of `--only` of `python -m benchmarks.bench`, without modes and methods. Each row is a bar
as long as the step, divided by kind of operation. The outline beyond the bar is the time saved against the row above.
The last bar is the roofline. The result is printed as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench.cases import Plan, make_plan
from benchmarks.bench.measure import bench
from velogan.engine.device import resolve_device
from velogan.recipes import DEFAULT
from velogan.report.plots import Drawing, estimate_text_width
from velogan.training.engine_rules import MODES

_WIDTH, _LEFT, _RIGHT = 480, 16, 16
_ROW, _BAR, _TOP = 46, 18, 66
_CASE = ("network", "discriminator", "image_size", "batch_size", "method")


def chain(only: str, *, device: torch.device) -> Plan:
    """Return the plan: the reference, then one more change in each row, up to the default of `device`."""
    steps: list[tuple[str, dict[str, Any]]] = [
        ("reference", {"mode": "reference"}),
        ("batched passes, fused Adam, channels-last", {"mode": "eager"}),
        ("bf16", {"precision": "bf16"}),
    ]
    if device.type == "cuda":
        steps += [("compile", {"compile": "on"}), ("capture", {"mode": "graph"})]
    else:
        steps += [("native kernels", {"kernels": "native"}), ("Winograd", {"kernels": "winograd"})]
    engine: dict[str, Any] = dict(MODES["reference"])
    modes = {name: dict(engine := engine | change) for name, change in steps}
    return dict.fromkeys(make_plan(f"{only},{DEFAULT}", everything=False, device=device), modes)


def draw(result: dict[str, Any]) -> str:
    """Draw the first case as SVG."""
    case = {name: result["rows"][0][name] for name in _CASE}
    rows = [row for row in result["rows"] if all(row[name] == case[name] for name in _CASE)]
    roofline = next(row for row in result["rooflines"] if all(row[name] == case[name] for name in _CASE))
    groups = [name for name in rows[0]["where"] if any(row["where"][name] >= 0.005 for row in rows)]
    longest = max(row["step_ms"] for row in rows)
    legend = _legend_rows(groups)
    picture = Drawing(_WIDTH, _TOP + _ROW * (len(rows) + 1) + 22 * len(legend) + 14)
    picture.text(_LEFT, 26, f"One training step, {_name(case)}", size=16, weight=600)
    picture.text(_LEFT, 46, f"{result['machine']['device']}; milliseconds", css_class="soft", size=12)
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
            picture.text(x + 15, y, name, css_class="soft", size=12)
            x += 15 + estimate_text_width(name, 12) + 16
        y += 22
    return picture.to_svg_file(title=f"What a training step of {_name(case)} spends its time on, change by change")


def _row(
    picture: Drawing,
    y: float,
    row: dict[str, Any],
    *,
    first: bool,
    before: float | None,
    scale: float,
    groups: list[str],
) -> None:
    step_ms = row["step_ms"]
    picture.text(_LEFT, y + 12, row["mode"] if first else f"+ {row['mode']}", size=13)
    note = "" if before is None or first else f"{'−' if step_ms <= before else '+'}{_ms(abs(before - step_ms))}  "
    picture.text(_WIDTH - _RIGHT, y + 12, _ms(step_ms), size=13, anchor="end", weight=600)
    picture.text(
        _WIDTH - _RIGHT - estimate_text_width(_ms(step_ms), 14) - 10,
        y + 12,
        note.strip(),
        css_class="soft",
        anchor="end",
    )
    x = float(_LEFT)
    for number, name in enumerate(groups):
        width = step_ms * row["where"][name] * scale
        picture.rect(x, y + 18, width, _BAR, f"c{number}")
        x += width
    if before is not None and step_ms < before:
        picture.rect(_LEFT + step_ms * scale, y + 18, (before - step_ms) * scale, _BAR, "saved")


def _legend_rows(names: list[str]) -> list[list[str]]:
    rows: list[list[str]] = [[]]
    x = 0.0
    for name in names:
        width = 31 + estimate_text_width(name, 12)
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


if __name__ == "__main__":
    only, target = sys.argv[1:]
    result = bench(
        chain(only, device=resolve_device("auto")), rounds=3, print_line=lambda text: print(text, file=sys.stderr)
    )
    Path(target).write_text(draw(result))
    print(json.dumps(result))
