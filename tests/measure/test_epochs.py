"""`benchmarks/epochs.py`."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from rich.console import Console

from benchmarks import epochs
from velogan.config import Config
from velogan.engine.duration import Span
from velogan.observe.progress import Display


def configs(make: Callable[..., Config]) -> dict[str, Config]:
    """Return the methods of three presets with tiny networks."""
    engine = {"mode": "eager", "threads": 1}
    train = {"length": "200 epochs"}
    built = {name: make(method=name, engine=engine, train=train) for name in ("cyclegan", "onepair")}
    return {**built, "onepair-plus": built["onepair"].change(generator={"norm": "none"})}


def test_each_method_trains_its_fraction_of_an_epoch(
    tiny_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(epochs, "TURN", Span(2, "images"))
    with Display() as display:
        result = epochs.measure_epochs(configs(tiny_config), fraction=1.0, display=display)
    result = json.loads(json.dumps(result))
    assert result["images_of_epoch"] == 4
    cyclegan, *others = result["rows"]
    for row in result["rows"]:
        assert row["images"] == sum(images for images, _ in row["turns"]) == 4
        assert len(row["turns"]) == 2
        assert row["seconds"] == pytest.approx(sum(seconds for _, seconds in row["turns"]))
        assert row["minutes"]["1"] == pytest.approx(row["seconds"] / row["images"] * 4 / 60)
        assert row["minutes"]["15"] == pytest.approx(15 * row["minutes"]["1"])
        assert row["speed_up"] == pytest.approx(cyclegan["minutes"]["1"] / row["minutes"]["1"])
    assert [row["method"] for row in others] == ["onepair", "onepair-plus"]


def test_shows_the_paper_s_rows_first_and_marks_extrapolated_values():
    minutes = {"1": 2.0, "2": 4.0, "3": 6.0, "15": 30.0}
    row = {"method": "onepair", "images": 20, "minutes": minutes, "speed_up": 2.5}
    console = Console(width=80, record=True)
    for part in epochs.render_epochs({"rows": [row], "images_of_epoch": 10}):
        console.print(part)
    lines = {line.strip().partition("  ")[0]: line.split() for line in console.export_text().splitlines()}
    assert lines["paper: proposal"][2:] == ["32.92", "65.84", "98.76", "493.80"]
    assert lines["here: onepair"][2:] == ["2.00", "4.00", "≈", "6.00", "≈", "30.00"], "two epochs were measured"


@pytest.mark.parametrize("fraction", [0.0, 1.5])
def test_rejects_wrong_fractions(tiny_config: Callable[..., Config], fraction: float):
    with Display() as display, pytest.raises(ValueError, match=f"--fraction {fraction}: "):
        epochs.measure_epochs(configs(tiny_config), fraction=fraction, display=display)
