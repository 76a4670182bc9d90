from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from velogan.config import Config
from velogan.data.domains.sources import find_sources
from velogan.data.pictures.images import Picture, save_picture
from velogan.evaluation.validation import SCORE, Validation
from velogan.methods.base import Views
from velogan.observe.log import read_stats
from velogan.observe.progress import Display
from velogan.run import train
from velogan.session import Result
from velogan.store.checkpoint import find_checkpoint, list_checkpoints, read_best


def _train(config: Config, run: Path, said: list[str] | None = None) -> Result:
    with Display() as display:
        if said is not None:
            display.say = lambda text: said.append(text)
        return train(config, run, display=display, origin={"preset": "test", "command": "test"})


@pytest.fixture
def two_folders(tmp_path: Path) -> tuple[str, str]:
    """Dark reds with 24 pictures and bright greens with 31, of 32 pixels."""
    random = np.random.default_rng(0)
    for name, count, colour in (("reds", 24, (90, 0, 0)), ("greens", 31, (0, 200, 0))):
        (tmp_path / name).mkdir()
        for number in range(count):
            pixels = random.integers(0, 50, (32, 32, 3)) + np.array(colour)
            save_picture(tmp_path / name / f"{number:03d}.png", Picture(pixels.astype(np.uint8)))
    return str(tmp_path / "reds"), str(tmp_path / "greens")


class _Paint(nn.Module):
    """Moves an image's colour, `towards` being its share of the way from reds to greens (negative: back)."""

    def __init__(self, towards: float):
        super().__init__()
        self.shift = towards * (torch.tensor([0, 200.0, 0]) - torch.tensor([90.0, 0, 0])).view(3, 1, 1) / 127.5

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


def _validation(config: Config, there: float, back: float) -> Validation:
    views = Views({"a2b": _Paint(there), "b2a": _Paint(back)})
    return Validation(config, find_sources(config.data), views)


@pytest.fixture
def config(two_folders: tuple[str, str], tiny_config: Callable[..., Config]) -> Config:
    return tiny_config(data={"path": two_folders}, engine={"device": "cpu", "precision": "fp32"})


def test_the_score_is_lowest_for_the_translation_to_the_other_domain(config: Config):
    right, half, nothing = (_validation(config, there, -there).score() for there in (1.0, 0.5, 0.0))
    assert right[SCORE] < half[SCORE] / 3 < nothing[SCORE] / 3
    for way in ("a2b", "b2a"):
        assert right[f"{SCORE}_{way}"] < half[f"{SCORE}_{way}"] < nothing[f"{SCORE}_{way}"]
    assert right[SCORE] == pytest.approx((right[f"{SCORE}_a2b"] + right[f"{SCORE}_b2a"]) / 2)


def test_the_cycle_is_told_beside_the_score(config: Config):
    figures = _validation(config, 1.0, -0.5).score()
    lost = (0.5 * _Paint(1.0).shift).abs().mean().item()
    assert figures["validation/cycle_a"] == pytest.approx(lost, rel=1e-4)
    assert figures["validation/cycle_b"] == pytest.approx(lost, rel=1e-4)


def test_held_out_pictures_are_named_and_no_others_are_seen(config: Config):
    validation = _validation(config, 1.0, -1.0)
    assert validation.on == "2 held-out reds and 3 held-out greens"
    assert (len(validation.a), len(validation.b)) == (2, 3)
    assert validation.a.shape[1:] == (3, 32, 32)


@pytest.mark.parametrize(
    ("data", "why"), [({"validation": 0}, "data.validation=0"), ({"path": ("apples2oranges",)}, "fewer than 20")]
)
def test_without_held_out_pictures_there_is_no_best_and_that_is_said(
    data: dict[str, Any], why: str, config: Config, tmp_path: Path
):
    said: list[str] = []
    _train(config.change(data=data), tmp_path / "run", said)
    assert any(why in line and "no checkpoint will be chosen as best" in line for line in said)
    assert read_best(tmp_path / "run") is None
    with pytest.raises(ValueError, match=r"data\.validation holds out"):
        find_checkpoint(tmp_path / "run", "best")


def test_the_best_checkpoint_is_the_one_with_the_lowest_score(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    figures = iter([0.5, 0.25, float("nan"), 0.75, 0.125])
    monkeypatch.setattr(Validation, "score", lambda self: {SCORE: next(figures)})
    config = config.change(train={"length": "8 images", "checkpoint_every": "2 images", "keep": 1})
    run = tmp_path / "run"
    _train(config, run)
    on = "2 held-out reds and 3 held-out greens"
    assert read_best(run) == {"checkpoint": "000000004", "name": SCORE, "score": 0.25, "on": on}
    assert [path.name for path in list_checkpoints(run)] == ["000000004", "000000008"]
    rows = [(row["images"], row[SCORE]) for row in read_stats(run) if SCORE in row]
    assert rows == [(2, 0.5), (4, 0.25), (6, None), (8, 0.75)]
    assert "Best: checkpoint 2 of 3, at 4 images" in (run / "report.html").read_text()
    _train(config.change(train={"length": "9 images"}), run)
    assert json.loads((run / "checkpoints" / "best.json").read_text())["checkpoint"] == "000000009"


def test_a_run_ends_when_the_score_has_waited_for_long_enough(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    figures = iter([0.5, 0.25, 0.3, 0.4, 0.1])
    monkeypatch.setattr(Validation, "score", lambda self: {SCORE: next(figures)})
    config = config.change(train={"length": "20 images", "checkpoint_every": "2 images", "patience": 2})
    for _ in range(2):  # the second finds that it has ended
        result = _train(config, tmp_path / "run")
        assert (result.images_seen, result.finished) == (8, True)
    assert _train(config.change(train={"patience": 3, "length": "10 images"}), tmp_path / "run").images_seen == 10


def test_scoring_changes_nothing_that_training_computes(config: Config, tmp_path: Path):
    often, seldom = (
        _train(config.change(train={"length": "6 images", "checkpoint_every": every}), tmp_path / every)
        for every in ("1 images", "100 %")
    )
    assert often.weights_sha256 == seldom.weights_sha256
    assert len([row for row in read_stats(often.run) if SCORE in row]) == 6
