"""The plots of `benchmarks/waterfall.py` and `benchmarks/overlay.py`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from benchmarks import overlay, waterfall
from velogan.training.engine_rules import MODES

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


def boxes(svg: str) -> Iterator[tuple[str, float, float, float]]:
    """(class, x, y, width) of every box but the card."""
    for box in ElementTree.fromstring(svg).iter(f"{SVG}rect"):
        if box.get("class") != "card":
            x, y, width = (float(box.get(name) or 0) for name in ("x", "y", "width"))
            yield str(box.get("class")), x, y, width


def test_bars_are_as_long_as_the_parts_of_steps_and_their_savings():
    svg = waterfall.draw(RESULT)
    card_width = float(ElementTree.fromstring(svg).get("width") or 0)
    rows: dict[float, dict[str, tuple[float, float]]] = {}
    for kind, x, y, width in boxes(svg):
        assert 0 <= x <= card_width - width
        if width > 10:
            rows.setdefault(y, {})[kind] = (x, width)
    reference, bf16, layout, roofline = (rows[y] for y in sorted(rows))
    total = reference["c0"][1] + reference["c1"][1]
    assert reference["c0"][1] == pytest.approx(total / 4, abs=0.1)
    assert bf16["c0"][1] + bf16["c1"][1] == pytest.approx(total / 2, abs=0.2)
    assert bf16["saved"] == pytest.approx((bf16["c0"][0] + total / 2, total / 2), abs=0.2)
    assert "saved" not in layout, "it took longer"
    assert roofline["roofline"][1] == pytest.approx(total / 8, abs=0.1)


def test_the_text_names_the_case_and_its_times():
    root = ElementTree.fromstring(waterfall.draw(RESULT))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert "One training step, ResNet-9, 256×256, batch 1" in texts
    assert "a <processor> & co; milliseconds" in texts
    assert {"800", "400", "−400", "500", "+100", "100"} <= set(texts)
    assert "1" not in texts, "another case's row"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_each_step_of_the_chain_changes_settings_and_keeps_earlier_changes(device: str):
    (chain,) = waterfall.chain("unet_256", device=torch.device(device)).values()
    settings = list(chain.values())
    assert settings[0] == {**(reference := MODES["reference"]), "mode": "reference"}
    for before, after in itertools.pairwise(settings):
        changed = {name for name in after if after[name] != before[name]}
        assert changed
        assert all(after[name] != reference[name] for name in changed - {"mode"}), "nothing is taken back"
    assert settings[-1]["mode" if device == "cuda" else "kernels"] == ("graph" if device == "cuda" else "winograd")


def test_equal_curves_coincide():
    curve = {"images": [0, 10, 20], "loss": [4.0, 2.0, 1.0]}
    svg = overlay.draw([{"mode": "reference", **curve}, {"mode": "graph", **curve}])
    lines = [
        line for line in ElementTree.fromstring(svg).iter(f"{SVG}polyline") if "grid" not in str(line.get("class"))
    ]
    below, above = lines
    assert below.get("points") == above.get("points")
    assert float(below.get("stroke-width") or 0) > float(above.get("stroke-width") or 0), "both are to be seen"
    heights = [float(point.split(",")[1]) for point in str(below.get("points")).split()]
    assert heights == sorted(heights), "a lower loss lies lower"
    with pytest.raises(ValueError, match="no curves"):
        overlay.draw([])
