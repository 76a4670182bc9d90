"""benchmarks/sets.py: its tables, its plot, and a complete run on a tiny set."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import sets
from velogan.networks.pretrained import find_lite, install_command


def _score(name: str, value: float, unchanged: float | None, real: float | None, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "baseline": unchanged,
        "real": real,
        "direction": "a2b",
        "weights": "ema",
    } | more


def test_closed_is_the_share_between_unchanged_and_real_images() -> None:
    scores = [
        _score("lite2_kid", 0.4, 1.0, 0.2),
        _score("lite2_kid", 0.9, 1.0, 0.2, weights="raw"),
        _score("squeeze_kid", 0.6, 1.0, 0.2),
        _score("lite2_kid", 0.4, None, 0.2, direction="b2a"),
        _score("lite2_share_class_340", 0.5, 0.0, 0.9),
        _score("lite2_share_class_339", 0.1, 0.8, 0.0),
        _score("structure", 0.8, 1.0, 0.1),
        _score("retrieval", 0.97, 1.0, 0.5),
        _score("sliced_wasserstein", 0.1, 0.2, 0.1),
    ]
    figures = sets.figures(scores, {"a2b": 340, "b2a": 339})
    assert figures["a2b"].keys() == {"closed", "closed (SqueezeNet)", "share", "structure", "retrieval"}
    assert figures["a2b"]["retrieval"] == {"value": 0.97, "nothing": 1.0, "real": 0.5}
    assert figures["a2b"]["closed"]["value"] == pytest.approx(0.75)
    assert figures["a2b"]["closed (SqueezeNet)"]["value"] == pytest.approx(0.5)
    assert figures["a2b"]["share"] == {"value": 0.5, "nothing": 0.0, "real": 0.9}
    assert figures["b2a"] == {}


@pytest.mark.soak
@pytest.mark.skipif(find_lite("lite2") is None, reason=f"the judge is not here: {install_command('lite2')}")
def test_runs_on_a_tiny_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "data: apples2oranges\nimages: 2\npresets: {cyclegan: {}}\nimage_size: 32\nconfig:\n"
        "  data: {render_count: 20, render_test: 4}\n  generator: {channels: 4, blocks: 1}\n"
        "  discriminator: {channels: 4}\n  train: {samples: 0, logger: none}\n"
    )
    monkeypatch.setattr(
        sys, "argv", ["sets.py", str(plan), "--out", str(tmp_path / "out"), "--limit", "4", "--parallel", "2"]
    )
    assert sets.main() == 0
    runs = json.loads((tmp_path / "out" / "sets.json").read_text())
    assert [(run["set"], run["recipe"], run["images"]) for run in runs] == [("apples2oranges", "cyclegan", 2)]
    assert runs[0]["ways"].keys() == {"a2b", "b2a"}
    html = (tmp_path / "out" / "sets.html").read_text()
    assert html.count("<img ") == 1 + 2 * (2 + 2)  # two held-out pictures of each domain, and their translations
    assert "apples2oranges, B to A" in (tmp_path / "out" / "sets.svg").read_text()
    assert "Distance closed, median over directions" in html
    assert "Layout kept" in capsys.readouterr().out
