"""`benchmarks/epochs.py`."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

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
        with pytest.raises(ValueError, match=r"--fraction 1\.5: "):
            epochs.measure_epochs(configs(tiny_config), fraction=1.5, display=display)
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
    assert list(epochs.render_epochs(result))
