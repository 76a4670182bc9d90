"""One trial: done, failed with its reason, stopped by what takes its reports, and how far it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from velogan.evaluation.validation import SCORE
from velogan.store.checkpoint import list_checkpoints
from velogan.sweep.folder import TrialState, run_folder, state_of, write_status
from velogan.sweep.plan import SweepPlan
from velogan.sweep.trial import run_trial


def start(out: Path, plan: SweepPlan, report: Callable[[int, float], None] = lambda percent, score: None) -> TrialState:
    (trial,) = plan.known_trials()
    return run_trial(out, trial, plan, threads=1, origin={"preset": "test", "command": "here"}, report=report)


def test_a_trial_is_a_run_and_reports_its_scores(tiny_plan: Callable[..., SweepPlan], tmp_path: Path) -> None:
    reported: list[tuple[int, float]] = []
    found = start(tmp_path, tiny_plan(), lambda percent, score: reported.append((percent, score)))
    assert (found.status, found.images, found.percent) == ("done", 6, 100)
    assert [percent for percent, _ in reported] == [33, 66, 100]
    assert found.score == min(score for _, score in reported)
    assert (run_folder(tmp_path, "seed=0") / "report.html").is_file()
    # a longer budget is not yet used up, and the run goes on
    assert state_of(tmp_path, "seed=0", budget="8 images", metric=SCORE).status == "waiting"
    longer = start(tmp_path, tiny_plan(budget="8 images"))
    assert (longer.status, longer.images) == ("done", 8)
    assert "continuing" in (tmp_path / "status" / "seed=0.log").read_text()


def test_a_trial_that_fails_tells_why(tiny_plan: Callable[..., SweepPlan], tmp_path: Path) -> None:
    base = tiny_plan().bases["cyclegan"].change(data={"path": (str(tmp_path / "nowhere"),)})
    found = start(tmp_path, tiny_plan(bases={"cyclegan": base}))
    assert found.status == "failed"
    assert "nowhere" in found.reason


def test_what_raises_on_a_report_ends_a_trial_that_has_saved(
    tiny_plan: Callable[..., SweepPlan], tmp_path: Path
) -> None:
    def stop(percent: int, score: float) -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        start(tmp_path, tiny_plan(), stop)
    assert list_checkpoints(run_folder(tmp_path, "seed=0"))
    write_status(tmp_path, "other", "stopped early", budget="6 images")
    assert state_of(tmp_path, "other", budget="6 images", metric=SCORE).status == "stopped early"
    assert state_of(tmp_path, "other", budget="12 images", metric=SCORE).status == "waiting"
