"""benchmarks/scatter.py: what it makes of a plan's runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import scatter
from velogan.config import Config, write_yaml
from velogan.networks.sizes import network_size


def _run(folder: Path, recipe: str, channels: int, **closed: float) -> dict[str, Any]:
    config = Config().change(generator={"channels": channels})
    (folder / recipe).mkdir(exist_ok=True)
    (folder / recipe / "config.yaml").write_text(write_yaml(config))
    ways = {way: {"closed": {"value": value}} for way, value in closed.items()}
    return {"set": "horse2zebra", "recipe": recipe, "run": str(folder / recipe), "reason": "", "ways": ways}


def test_sizes_and_what_is_left_are_over_those_of_the_hand_made_networks(tmp_path: Path) -> None:
    runs = [_run(tmp_path, "C64", 64, a2b=0.2, b2a=0.5), _run(tmp_path, "C64", 64, a2b=0.4, b2a=0.5)]
    runs += [_run(tmp_path, "OF32", 32, a2b=0.65, b2a=0.25)]
    found = scatter.make_panels([*runs, {"reason": "it failed", "set": "horse2zebra"}])
    assert found.keys() == {("horse2zebra", "a2b"), ("horse2zebra", "b2a")}
    one = found["horse2zebra", "a2b"]
    assert [round(y, 6) for _, y in one["C64"]] == [round(0.8 / 0.7, 6), round(0.6 / 0.7, 6)]
    of = Config().generator
    smaller = network_size(of.model_copy(update={"channels": 32})).parameters / network_size(of).parameters
    assert one["OF32"] == [(pytest.approx(smaller), pytest.approx(0.5))]
    picture = scatter.draw(found)
    assert len(re.findall(r"<title>(?:C64|OF32)</title>", picture)) == 6
    assert "the paper&#x27;s N64: 0.831" in picture  # 38.05 / 45.78, section 4.3
    with pytest.raises(ValueError, match="horse2zebra a2b: C64 has no score"):
        scatter.make_panels(runs[-1:])


def test_a_recipe_has_the_colour_of_its_scheme() -> None:
    hues = [scatter.hue_of(name) for name in ("C64", "C64-sized", "OF64-patchgan", "THS32", "TF64-words", "fast")]
    assert hues == [scatter.HUES[name] for name in ("C", "C", "OF", "THS", "TF")] + [6]
