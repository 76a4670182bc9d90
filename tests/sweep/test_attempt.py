"""One trial as a child process: done, failed with its reason, killed and continued, stopped from outside."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from velogan.evaluation.validation import SCORE
from velogan.store.checkpoint import list_checkpoints
from velogan.sweep import attempt as module
from velogan.sweep.attempt import attempt
from velogan.sweep.cores import available, held
from velogan.sweep.folder import TrialState, note, noted, run_folder, state_of
from velogan.sweep.plan import SweepPlan

pytestmark = pytest.mark.usefixtures("forked")


def start(out: Path, plan: SweepPlan, report: Callable[[int, float], None] = lambda percent, score: None) -> TrialState:
    trial = plan.known_trials()[0]
    common: dict[str, Any] = {"budget": plan.budget, "metric": plan.metric, "origin": {"command": "here"}}
    return attempt(out, trial.name, trial.config.model_dump(mode="json"), cores=1, report=report, **common)


def test_a_trial_is_a_run_and_reports_its_scores(tiny_plan: Callable[..., SweepPlan], tmp_path: Path) -> None:
    told: list[tuple[int, float]] = []
    found = start(tmp_path, tiny_plan(), lambda percent, score: told.append((percent, score)))
    assert (found.status, found.images, found.percent) == ("done", 6, 100)
    assert [percent for percent, _ in told] == [33, 66, 100]
    assert found.score == min(score for _, score in told)
    assert len(noted(tmp_path, "seed=0")["cores"]) == 1
    assert (run_folder(tmp_path, "seed=0") / "report.html").is_file()
    # a longer budget is not yet used up, and the run goes on
    assert state_of(tmp_path, "seed=0", budget="8 images", metric=SCORE).status == "waiting"


def test_a_trial_that_fails_tells_why(tiny_plan: Callable[..., SweepPlan], tmp_path: Path) -> None:
    plan = tiny_plan()
    base = plan.bases["cyclegan"].change(data={"path": (str(tmp_path / "nowhere"),)})
    found = start(tmp_path, tiny_plan(bases={"cyclegan": base}))
    assert found.status == "failed"
    assert "nowhere" in found.reason


def test_a_killed_trial_goes_on_from_its_checkpoint(tiny_plan: Callable[..., SweepPlan], tmp_path: Path) -> None:
    killed: list[int] = []

    def kill() -> None:
        run = run_folder(tmp_path, "seed=0")
        while not list_checkpoints(run):
            time.sleep(0.01)
        pid = int((run / ".lock").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)

    killer = Thread(target=kill)
    killer.start()
    found = start(tmp_path, tiny_plan(budget="60 images", bases=_saves_at(tiny_plan, "10 images")))
    killer.join()
    assert killed
    assert (found.status, found.images) == ("done", 60)
    assert "continuing" in (tmp_path / "status" / "seed=0.log").read_text()


def test_one_that_is_killed_again_and_again_has_failed(
    tiny_plan: Callable[..., SweepPlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ask", lambda *rest, **more: (-9, {}))
    found = start(tmp_path, tiny_plan())
    assert found.status == "failed"
    assert "signal 9 3 times" in found.reason


def test_one_that_is_stopped_has_saved(tiny_plan: Callable[..., SweepPlan], tmp_path: Path) -> None:
    def stop(percent: int, score: float) -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        start(tmp_path, tiny_plan(budget="100000 images", bases=_saves_at(tiny_plan, "10 images")), stop)
    assert list_checkpoints(run_folder(tmp_path, "seed=0"))
    note(tmp_path, "seed=0", "stopped early", budget="100000 images")
    assert state_of(tmp_path, "seed=0", budget="100000 images", metric=SCORE).status == "stopped early"
    assert state_of(tmp_path, "seed=0", budget="200000 images", metric=SCORE).status == "waiting"


def test_cores_are_held_by_one_at_a_time(tmp_path: Path) -> None:
    with held(1, folder=tmp_path) as first:
        got: list[list[int]] = []

        def take() -> None:
            with held(len(available()), folder=tmp_path) as cores:
                got.append(cores)

        waiter = Thread(target=take)
        waiter.start()
        time.sleep(0.3)
        assert not got
        assert len(first) == 1
    waiter.join()
    assert got == [available()]


def _saves_at(tiny_plan: Callable[..., SweepPlan], every: str) -> dict[str, Any]:
    return {"cyclegan": tiny_plan().bases["cyclegan"].change(train={"checkpoint_every": every})}
