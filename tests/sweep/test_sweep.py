"""Whole sweeps under a Ray of this machine: grid, random, optuna, asha, failures, and sweeps that go on."""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from velogan.config import to_yaml
from velogan.engine.ray_session import ray_session
from velogan.store.lock import lock_folder
from velogan.sweep import sweep as module
from velogan.sweep.dimensions import parse_dimension
from velogan.sweep.plan import SweepPlan
from velogan.sweep.scheduling import divide_resources
from velogan.sweep.sweep import StatusLog, check_plan, sweep
from velogan.sweep.trial import log_file, run_folder

pytestmark = pytest.mark.filterwarnings("ignore:::ray")


@pytest.fixture(scope="module")
def ray() -> Iterator[None]:
    """One Ray for all tests of this file: its start takes seconds."""
    with ray_session(None):
        yield


def run(plan: SweepPlan, out: Path, *, parallel: int | None = None) -> dict[str, Any]:
    return sweep(
        plan, out, check_plan(plan, out), command="velogan sweep", log=StatusLog(quiet=True), parallel=parallel
    )


def statuses(result: dict[str, Any]) -> dict[str, str]:
    return {trial["name"]: trial["status"] for trial in result["trials"]}


def test_a_grid_with_a_trial_that_fails_goes_on_and_grows(
    ray: None, tiny_plan: Callable[..., SweepPlan], tmp_path: Path
) -> None:
    dimensions = [parse_dimension(f"data.path=[apples2oranges],[{tmp_path}/nowhere]")]
    base = {"cyclegan": tiny_plan().bases["cyclegan"].change(train={"samples": 1})}
    result = run(tiny_plan(vary=dimensions, bases=base), tmp_path / "out")
    good, bad = result["trials"]
    assert (good["status"], bad["status"]) == ("done", "failed")
    assert "nowhere" in bad["reason"]
    assert result["best"] == good["name"]
    assert good["images"] == 6
    assert good["test_scores"]
    assert bad["test_scores"] is None
    saved = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert saved["trials"] == result["trials"]
    page = Path(result["page"]).read_text()
    assert "nowhere" in page
    assert saved["again"] in html.unescape(re.sub(r"<[^>]+>", "", page))
    assert "data:image" in page

    stats = Path(good["run"]) / "stats.jsonl"
    before = stats.read_bytes(), stats.stat().st_mtime_ns
    more = run(tiny_plan(vary=[parse_dimension("data.path=[apples2oranges]")], seeds=2, bases=base), tmp_path / "out")
    assert list(statuses(more).values()) == ["done", "done"]
    assert more["trials"][0]["name"] == good["name"]
    assert (stats.read_bytes(), stats.stat().st_mtime_ns) == before
    assert "preparing" not in log_file(tmp_path / "out", more["trials"][1]["name"]).read_text()  # once, for all


def test_optuna_chooses_settings_and_does_not_resume(
    ray: None, tiny_plan: Callable[..., SweepPlan], tmp_path: Path
) -> None:
    dimensions = [parse_dimension("optimizer.lr=1e-5..1e-2:log"), parse_dimension("optimizer.beta1=0.50,9e-1")]
    plan = tiny_plan(vary=dimensions, search="optuna", trials=2)
    result = run(plan, tmp_path)
    assert list(statuses(result).values()) == ["done", "done"]
    assert all(1e-5 <= trial["settings"]["optimizer.lr"] <= 1e-2 for trial in result["trials"])
    with pytest.raises(ValueError, match="choose a new --out"):
        run(plan, tmp_path)


def test_asha_stops_what_is_behind(ray: None, tiny_plan: Callable[..., SweepPlan], tmp_path: Path) -> None:
    """Nothing is learned, so that the first setting's score is the better one from the start."""
    still = tiny_plan().bases["cyclegan"].change(optimizer={"lr": 1e-9})
    dimensions = [parse_dimension("generator.norm=instance,none")]
    plan = tiny_plan(vary=dimensions, bases={"cyclegan": still}, stop_early="asha", images=8)
    better, stopped = run(plan, tmp_path, parallel=1)["trials"]
    assert (better["status"], stopped["status"]) == ("done", "stopped early")
    assert stopped["images"] < 8
    assert "best third" in stopped["reason"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": {"lr": 0.7}}, r"another sweep.*optimizer\.lr"),
        (
            {"train": {"length": "9 images"}},
            "was trained for 9 images, and this sweep is of 6 images: runs of unequal len",
        ),
    ],
)
def test_rejects_a_folder_of_other_trials(
    changes: dict[str, Any],
    message: str,
    tiny_plan: Callable[..., SweepPlan],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trial = tiny_plan().known_trials()[0]
    folder = run_folder(tmp_path, trial.name)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(trial.config.change(**changes)))
    monkeypatch.setattr(module, "ray_session", None)
    with pytest.raises(ValueError, match=message):
        run(tiny_plan(), tmp_path)


def test_rejects_another_metric_for_scored_trials(tiny_plan: Callable[..., SweepPlan], tmp_path: Path) -> None:
    for trial in tiny_plan().known_trials():
        folder = run_folder(tmp_path, trial.name)
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(to_yaml(trial.config))
        (folder / "stats.jsonl").write_text('{"images": 2, "validation/distance": 0.5}\n')
    check_plan(tiny_plan(), tmp_path)
    with pytest.raises(
        ValueError, match=r"--metric validation/structure: .* was scored by another metric: choose a new --out"
    ):
        check_plan(tiny_plan(metric="structure"), tmp_path)


def test_rejects_a_folder_in_use(tiny_plan: Callable[..., SweepPlan], tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(ValueError, match="is in use by process"):
        run(tiny_plan(), tmp_path)


def test_reports_a_missing_extra(
    tiny_plan: Callable[..., SweepPlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ValueError, match=r"velogan sweep needs optuna, which cannot be imported: .*\[sweep\]"):
        run(tiny_plan(), tmp_path)


@pytest.mark.parametrize(
    ("nodes", "parallel", "trials", "expected"),
    [
        ([(2, 0)], None, 9, {"cpu": 1, "gpu": 0}),
        ([(8, 0), (8, 0)], None, 3, {"cpu": 5, "gpu": 0}),
        ([(16, 1)], 3, 9, {"cpu": 5, "gpu": 0.333}),
    ],
)
def test_divides_cores_and_gpus_among_trials(
    nodes: list[tuple[int, int]],
    parallel: int | None,
    trials: int,
    expected: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = pytest.importorskip("ray")
    resources = [{"Alive": True, "Resources": {"CPU": cores, "GPU": gpus}} for cores, gpus in nodes]
    monkeypatch.setattr(ray, "nodes", lambda: resources)
    assert divide_resources(parallel=parallel, trials=trials, device="auto") == expected
