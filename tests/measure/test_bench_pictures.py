"""The plots of `benchmarks/waterfall.py` and `benchmarks/overlay.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks import overlay, waterfall

FOLDER = Path(__file__).parents[2] / "benchmarks"
SVG = "{http://www.w3.org/2000/svg}"
CASE = {"network": "resnet_9", "discriminator": "basic", "image_size": 256, "batch_size": 1, "method": "cyclegan"}


def row(mode: str, step_ms: float, convolution: float) -> dict[str, Any]:
    return {**CASE, "mode": mode, "step_ms": step_ms, "where": {"convolution": convolution, "other": 1 - convolution}}


RESULT = {
    "machine": {"device": "a <processor> & co"},
    "rows": [
        row("reference", 800, 0.25),
        row("bf16", 400, 0.5),
        row("layout", 500, 0.5),
        {**row("x", 1, 1), "batch_size": 2},
    ],
    "rooflines": [{**CASE, "ms": 100}],
}


def test_the_waterfall_names_the_case_and_its_times():
    root = ElementTree.fromstring(waterfall.draw(RESULT))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"a <processor> & co; milliseconds", "800", "400", "−400", "500", "+100", "100"} <= set(texts)
    assert "1" not in texts, "another case's row"


def test_the_overlay_has_a_line_for_each_curve():
    curve = {"images": [0, 10, 20], "loss": [4.0, 2.0, 1.0]}
    root = ElementTree.fromstring(overlay.draw([{"mode": "reference", **curve}, {"mode": "graph", **curve}]))
    lines = [line for line in root.iter(f"{SVG}polyline") if "grid" not in str(line.get("class"))]
    assert len(lines) == 2
