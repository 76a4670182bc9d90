"""The metric of a sweep: its best checkpoint, the ranking of settings, the unchanged input and test images."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from velogan.evaluation.metric import RESAMPLED_SUFFIX
from velogan.evaluation.validation import FEATURE_SCORE, IDENTITY_SCORE, SCORE
from velogan.kernels.inference import Accelerator
from velogan.sweep.plan import SweepPlan, Trial
from velogan.sweep.sweep import (
    StatusLog,
    add_test_scores,
    check_plan,
    group_by_setting,
    read_rows,
    summarize,
    unchanged_input_score,
)
from velogan.sweep.trial import TrialState, read_resampled_scores, read_scores, read_trial, run_folder, run_trial

PSNR = "validation/psnr_object_db"


def test_scores_each_checkpoint_and_then_test_images(
    tiny_plan: Callable[..., SweepPlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, reported = tiny_plan(metric="psnr_object_db"), list[float]()
    (trial,) = plan.known_trials()
    origin = {"preset": "test", "command": "here"}
    report: Callable[[int, float], None] = lambda percent, score: reported.append(score)  # noqa: E731
    state = run_trial(tmp_path, trial, plan, threads=1, origin=origin, report=report)
    assert (state.status, plan.metric, len(reported)) == ("done", PSNR, 3)
    assert state.score == max(reported)
    run = run_folder(tmp_path, "seed=0")
    assert [row["score"] for row in read_scores(run, PSNR)] == reported
    assert len(read_resampled_scores(run, PSNR) or []) == 400
    assert read_resampled_scores(run, SCORE) is None

    monkeypatch.setattr(Accelerator, "__call__", lambda _self, net, *, rounded: net)  # saves its measurements
    monkeypatch.setattr(Accelerator, "dtype", lambda _self, *, rounded: torch.float32)
    result = summarize(plan, read_rows(plan, tmp_path, plan.known_trials()), tmp_path)
    add_test_scores(plan, result, StatusLog(quiet=True))
    assert "psnr_object_db_a2b" in result["trials"][0]["test_scores"]


def log(out: Path, name: str, **values: list[float]) -> None:
    run = run_folder(out, name)
    run.mkdir(parents=True)
    rows = [dict(zip(values, row)) for row in zip(*values.values())]
    lines = [json.dumps({"images": images, **row}) for images, row in enumerate(rows, start=1)]
    (run / "stats.jsonl").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(("metric", "other"), [(SCORE, FEATURE_SCORE), (FEATURE_SCORE, SCORE)])
def test_the_unchanged_input_has_the_metric_that_it_was_scored_by(metric: str, other: str, tmp_path: Path) -> None:
    scores = {SCORE: [0.4, 0.3], metric: [0.4, 0.3]}
    for name, unchanged in (("a", 0.2), ("b", 0.4)):
        log(tmp_path, name, **scores, **{IDENTITY_SCORE: [unchanged, unchanged]})
    log(tmp_path, "c", **scores)
    trials = [{"run": str(run_folder(tmp_path, name)), "status": "done"} for name in "abc"]
    assert unchanged_input_score(metric, trials) == pytest.approx(0.3)
    assert unchanged_input_score(other, trials) is None
    assert unchanged_input_score(metric, trials[2:]) is None


@pytest.mark.parametrize(("metric", "best"), [("psnr_object_db", [22.0, [2.0]]), ("fid", [20.0, [1.0]])])
def test_the_best_checkpoint_has_the_better_score(
    metric: str, best: list[Any], tiny_plan: Callable[..., SweepPlan], tmp_path: Path
) -> None:
    plan = tiny_plan(metric=metric)
    values: dict[str, Any] = {plan.metric: [20.0, 22.0, 21.0], plan.metric + RESAMPLED_SUFFIX: [[1.0], [2.0], [3.0]]}
    log(tmp_path, "run", **values)
    assert read_trial(tmp_path, "run", plan).score == best[0]
    assert read_resampled_scores(run_folder(tmp_path, "run"), plan.metric) == best[1]


def test_ranks_settings_by_their_means_if_they_have_all_seeds(
    tiny_plan: Callable[..., SweepPlan], tmp_path: Path
) -> None:
    def rows(plan: SweepPlan, *scores: float | None) -> list[tuple[Trial, TrialState]]:
        trials = [Trial(f"lr={lr},seed={seed}", {}, seed, plan.bases["cyclegan"]) for lr in (1, 2) for seed in (0, 1)]
        states = [TrialState("failed" if score is None else "done", score=score) for score in scores]
        return list(zip(trials, states))

    for metric, best in (("psnr_object_db", "lr=2,seed=1"), ("fid", "lr=1,seed=0")):
        plan = tiny_plan(metric=metric, seeds=2)
        assert summarize(plan, rows(plan, 20.0, 21.0, 18.0, 25.0), tmp_path)["best"] == best
    result = summarize(plan, rows(plan, 0.3, 0.2, 0.1, None), tmp_path)
    assert result["best"] == "lr=1,seed=1"
    assert list(group_by_setting(plan, result["trials"])) == ["lr=1"]
    assert list(group_by_setting(plan, result["trials"][1:])) == ["lr=1", "lr=2"], "none has all"


@pytest.mark.parametrize(
    ("metric", "data", "message"),
    [
        (SCORE, {"validation": 0}, r"set data\.validation"),
        ("psnr_truth_db", {}, "not available for a2b on held-out pictures"),
    ],
)
def test_rejects_a_metric_that_the_images_do_not_allow(
    metric: str,
    data: dict[str, Any],
    message: str,
    tiny_plan: Callable[..., SweepPlan],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = {"cyclegan": tiny_plan().bases["cyclegan"].change(data=data)}
    with pytest.raises(ValueError, match=message):
        check_plan(tiny_plan(metric=metric, bases=base), tmp_path)
    assert not (tmp_path / "trials").exists()
