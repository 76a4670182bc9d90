"""One trial: done, failed with its reason, or stopped by its reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from velogan.store.checkpoint import list_checkpoints
from velogan.sweep.plan import SweepPlan
from velogan.sweep.trial import TrialState, read_trial, run_folder, run_trial, write_status


def start(out: Path, plan: SweepPlan, report: Callable[[int, float], None] = lambda percent, score: None) -> TrialState:
    (trial,) = plan.known_trials()
    return run_trial(out, trial, plan, threads=1, origin={"preset": "test", "command": "here"}, report=report)


def test_reports_scores_and_trains_on_with_a_longer_budget(tiny_plan: Callable[..., SweepPlan], tmp_path: Path) -> None:
    reported: list[tuple[int, float]] = []
    state = start(tmp_path, tiny_plan(), lambda percent, score: reported.append((percent, score)))
    assert (state.status, state.images) == ("done", 6)
    assert [percent for percent, _ in reported] == [33, 66, 100]
    assert state.score == min(score for _, score in reported)
    assert (run_folder(tmp_path, "seed=0") / "report.html").is_file()
    assert read_trial(tmp_path, "seed=0", tiny_plan(images=8)).status == "waiting"
    longer = start(tmp_path, tiny_plan(images=8))
    assert (longer.status, longer.images) == ("done", 8)
    assert "resuming" in (tmp_path / "status" / "seed=0.log").read_text()


def test_reports_why_a_trial_failed(tiny_plan: Callable[..., SweepPlan], tmp_path: Path) -> None:
    base = tiny_plan().bases["cyclegan"].change(data={"path": (str(tmp_path / "nowhere"),)})
    state = start(tmp_path, tiny_plan(bases={"cyclegan": base}))
    assert state.status == "failed"
    assert "nowhere" in state.reason


def test_an_error_in_a_report_ends_a_trial_that_has_saved(tiny_plan: Callable[..., SweepPlan], tmp_path: Path) -> None:
    def stop(percent: int, score: float) -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        start(tmp_path, tiny_plan(), stop)
    assert list_checkpoints(run_folder(tmp_path, "seed=0"))
    write_status(tmp_path, "other", "stopped early", budget="6 images")
    assert read_trial(tmp_path, "other", tiny_plan()).status == "stopped early"
    assert read_trial(tmp_path, "other", tiny_plan(images=12)).status == "waiting"
