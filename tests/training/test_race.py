"""Candidates train for a tenth each, and the best goes on: as if it had been alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from velogan import recipes
from velogan.cli import main
from velogan.config import Config, read_config
from velogan.observe.log import read_stats
from velogan.observe.progress import Display
from velogan.store.record import read_record
from velogan.training import race as racing
from velogan.training.race import race, rest
from velogan.training.run import train

_FLAGS = """--data apples2oranges --image-size 32 --data.render-count 8 --data.render-test 2 --generator.channels 4
    --generator.blocks 1 --discriminator.channels 4 --discriminator.network basic --data.batch-size 2
    --train.samples 0 --train.tensorboard false --engine.threads 1 --json --images 40"""
FLAGS = _FLAGS.split()


def _ran(capsys: pytest.CaptureFixture[str], run: Path, *more: str) -> tuple[dict[str, Any], str]:
    assert main(["train", "race", *FLAGS, "--out", str(run), *more]) == 0
    said = capsys.readouterr()
    return json.loads(said.out.splitlines()[-1]), said.err


@pytest.mark.parametrize("best", ["things", "contrast"])
def test_the_best_goes_on_as_if_it_had_been_alone(
    best: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    distances = {"things": 2.0, "scenes": 3.0, "contrast": 2.5} | {best: 1.0}
    heat = racing._heat

    def scored(config: Config, run: Path, **how: Any) -> float:
        heat(config, run, **how)
        return distances[run.name]

    monkeypatch.setattr(racing, "_heat", scored)
    found, said = _ran(capsys, tmp_path / "run")
    assert found["images_seen"] == 40
    assert f"race: {best} goes on" in said
    assert read_record(tmp_path / "run")["race"] == {"share": 0.1, "distance": distances, "best": best}
    assert [row["images"] for row in read_stats(tmp_path / "run" / "race" / "scenes")][-1] == 4
    again, said = _ran(capsys, tmp_path / "run")
    assert (again["weights_sha256"], "race:" in said) == (found["weights_sha256"], False)

    alone = read_config(tmp_path / "run")
    assert alone.method.kind == {"things": "cyclegan", "contrast": "contrast"}[best]
    with Display() as display:
        result = train(alone, tmp_path / "alone", display=display, origin={"preset": "", "command": ""})
    assert result.weights_sha256 == found["weights_sha256"]


def test_held_out_pictures_decide(tiny_config: Callable[..., Config], tmp_path: Path):
    one = tiny_config(data={"render_count": 24, "validation": 2}, train={"length": "20 images"})
    with Display() as display:
        race({"one": one, "other": one.change(train={"seed": 3})}, tmp_path, display=display, origin={})
    found = read_record(tmp_path)["race"]
    last = {name: read_stats(tmp_path / "race" / name)[-1]["validation/distance"] for name in ("one", "other")}
    assert found["distance"] == last
    assert last[found["best"]] == min(last.values()) < max(last.values())


def test_without_held_out_pictures_the_first_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    found, said = _ran(capsys, tmp_path / "run", "--data.validation", "0")
    assert "no pictures are held out to compare by, so things goes on" in said
    assert found["images_seen"] == 40


def test_a_candidate_that_cannot_take_the_pictures_is_left_out(
    tiny_config: Callable[..., Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    plain = tiny_config(data={"channels_a": 1, "validation": 0})
    cannot = tiny_config(discriminator={"norm": "spectral"}, method={"gan": "hinge"}).change(
        data={"path": (str(tmp_path / "nowhere"),)}
    )
    with Display() as display:
        race(
            {"one": cannot, "other": plain.change(data={"channels_a": None})},
            tmp_path / "run",
            display=display,
            origin={},
        )
        with pytest.raises(ValueError, match="nowhere"):
            race({"one": cannot}, tmp_path / "none", display=display, origin={})
    assert "race: one is left out: " in capsys.readouterr().err
    assert read_record(tmp_path / "run")["race"]["best"] == "other"


def test_minutes_that_the_others_took_are_gone():
    config = Config().change(train={"length": "40 minutes"})
    assert rest(config, others=2).train.length == "32 minutes"
    assert rest(config.change(train={"length": "500 images"}), others=2).train.length == "500 images"


def test_candidates_are_presets():
    for name, preset in {"things": "fast", "scenes": "scenes", "contrast": "contrast-fast"}.items():
        made = recipes.CANDIDATES[name](recipes.fast())
        assert made == recipes.RECIPES[preset]() == recipes.CANDIDATES[name](made)
