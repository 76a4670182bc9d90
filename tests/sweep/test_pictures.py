from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from velogan.config import Config, read_config
from velogan.data.sets.cache import open_domain
from velogan.data.sets.loader import normalize_batch
from velogan.data.sets.sources import DomainSource, find_sources
from velogan.observe.progress import Display
from velogan.sweep.pictures import held_out_pictures
from velogan.training.run import train
from velogan.translate.model import load_translator
from velogan.types import Direction

Make = Callable[..., dict[str, Any]]


@pytest.fixture
def trained(tiny_config: Callable[..., Config], tmp_path: Path) -> Make:
    """Return a function that trains a run for each data section, each scored worse than the previous."""

    def make(*sections: dict[str, Any]) -> dict[str, Any]:
        trials = []
        for number, section in enumerate(sections):
            config = tiny_config(data={"render_count": 40, **section}, train={"length": "2 images", "samples": 1})
            run = tmp_path / f"setting={number}"
            with Display() as display:
                train(config, run, display=display, origin={"preset": "test", "command": "test"})
            trial = {
                "name": f"setting={number},seed=0",
                "setting": f"setting={number}",
                "run": str(run),
                "status": "done",
            }
            trials.append(trial | {"score": float(number)})
        return {"trials": trials, "verdicts": {trial["setting"]: {} for trial in trials}, "better": "lower"}

    return make


def test_all_settings_translate_the_same_held_out_pictures(trained: Make) -> None:
    result = trained({"validation": 4}, {"validation": 2})
    pictures = held_out_pictures(result, print_line=pytest.fail)
    assert [entry["run"] for entry in pictures.values()] == [trial["run"] for trial in result["trials"]]
    run = Path(result["trials"][1]["run"])
    data = read_config(run).data
    sources = find_sources(data)
    sides: list[tuple[Direction, DomainSource]] = [("a2b", sources.a), ("b2a", sources.b)]
    for direction, side in sides:
        assert side.validation is not None
        held_out = open_domain(side.validation, data, test=True)
        first, second = (entry["pairs"][direction] for entry in pictures.values())
        translator = load_translator(run, direction=direction, checkpoint="best")
        assert len(held_out) == len(first) == len(second) == 2
        for number, ((same, _), (before, after)) in enumerate(zip(first, second)):
            pixels = np.asarray(held_out.image(number))
            np.testing.assert_array_equal(before, pixels)
            np.testing.assert_array_equal(same, before)
            expected = (translator(normalize_batch(torch.from_numpy(pixels)[None]))[0] + 1) * 127.5
            assert np.abs(after - expected.permute(1, 2, 0).numpy()).mean() < 2


def test_reports_a_run_without_held_out_pictures(trained: Make) -> None:
    lines: list[str] = []
    pictures = held_out_pictures(trained({"validation": 0}) | {"verdicts": {}}, print_line=lines.append)
    assert pictures["setting=0"]["pairs"] == {}
    assert "domain A has none" in lines[0]


def test_the_best_run_is_the_one_with_the_best_score(tmp_path: Path) -> None:
    runs = {"low": 1.0, "high": 2.0, "none": None}
    trials = [{"setting": "s", "status": "done", "run": str(tmp_path / name), "score": runs[name]} for name in runs]
    result = {"trials": trials, "verdicts": {"s": {}}}
    for better, name in (("lower", "low"), ("higher", "high")):
        pictures = held_out_pictures(result | {"better": better}, print_line=lambda text: None)
        assert pictures["s"] == {"run": str(tmp_path / name), "pairs": {}}
