"""The plot of benchmarks/scatter.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import scatter
from velogan.config import Config, to_yaml
from velogan.networks.sizes import network_size


def _run(folder: Path, recipe: str, channels: int, **closed: float) -> dict[str, Any]:
    config = Config().change(generator={"channels": channels})
    (folder / recipe).mkdir(exist_ok=True)
    (folder / recipe / "config.yaml").write_text(to_yaml(config))
    directions = {direction: {"closed": {"value": value}} for direction, value in closed.items()}
    return {"set": "horse2zebra", "recipe": recipe, "run": str(folder / recipe), "reason": "", "ways": directions}


def test_sizes_and_distances_are_relative_to_the_hand_made_networks(tmp_path: Path) -> None:
    runs = [_run(tmp_path, "C64", 64, a2b=0.2, b2a=0.5), _run(tmp_path, "C64", 64, a2b=0.4, b2a=0.5)]
    runs += [_run(tmp_path, "OF32", 32, a2b=0.65, b2a=0.25)]
    panels = scatter.make_panels([*runs, {"reason": "it failed", "set": "horse2zebra"}])
    assert panels.keys() == {("horse2zebra", "a2b"), ("horse2zebra", "b2a")}
    panel = panels["horse2zebra", "a2b"]
    assert [round(y, 6) for _, y in panel["C64"]] == [round(0.8 / 0.7, 6), round(0.6 / 0.7, 6)]
    full = Config().generator
    size = network_size(full.model_copy(update={"channels": 32})).parameters / network_size(full).parameters
    assert panel["OF32"] == [(pytest.approx(size), pytest.approx(0.5))]
    assert scatter.draw(panels).count("<title>OF32</title>") == 2
