"""What a sweep chooses by, and what it measures of the chosen ones: metrics whose better end is the higher one."""

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
from velogan.sweep import sweep as module
from velogan.sweep.folder import TrialState, resampled_of, run_folder, scores_of, state_of
from velogan.sweep.plan import SweepPlan, Trial
from velogan.sweep.sweep import StatusLog, add_test_scores, identity_score, ranked, rows_of, summary, sweep
from velogan.sweep.trial import run_trial

PSNR = "validation/psnr_object_db"


def trained(out: Path, plan: SweepPlan, reported: list[float]) -> TrialState:
    (trial,) = plan.known_trials()
    origin = {"preset": "test", "command": "here"}
    return run_trial(out, trial, plan, threads=1, origin=origin, report=lambda percent, score: reported.append(score))


def test_a_trial_is_scored_at_its_checkpoints_and_evaluated_on_test_images(
    tiny_plan: Callable[..., SweepPlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, told = tiny_plan(metric="psnr_object_db"), list[float]()
    found = trained(tmp_path, plan, told)
    assert (found.status, plan.metric, len(told)) == ("done", PSNR, 3)
    assert found.score == max(told)
    run = run_folder(tmp_path, "seed=0")
    assert [row["score"] for row in scores_of(run, PSNR)] == told
    assert len(resampled_of(run, PSNR) or []) == 400
    assert resampled_of(run, SCORE) is None

    monkeypatch.setattr(Accelerator, "__call__", lambda _self, net, *, rounded: net)  # spares its measurements
    monkeypatch.setattr(Accelerator, "dtype", lambda _self, *, rounded: torch.float32)
    result = summary(plan, rows_of(plan, tmp_path, plan.known_trials()), tmp_path)
    add_test_scores(plan, result, StatusLog(quiet=True))
    assert "psnr_object_db_a2b" in result["trials"][0]["test_scores"]


def log(out: Path, name: str, **values: list[float]) -> None:
    run = run_folder(out, name)
    run.mkdir(parents=True)
    rows = [dict(zip(values, one)) for one in zip(*values.values())]
    lines = [json.dumps({"images": at, **row}) for at, row in enumerate(rows, start=1)]
    (run / "stats.jsonl").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(("of", "other"), [(SCORE, FEATURE_SCORE), (FEATURE_SCORE, SCORE)])
def test_doing_nothing_is_known_by_the_metric_that_it_was_measured_by(of: str, other: str, tmp_path: Path) -> None:
    scores = {SCORE: [0.4, 0.3]} | ({of: [0.4, 0.3]})
    for name, nothing in (("a", 0.2), ("b", 0.4)):
        log(tmp_path, name, **scores, **{IDENTITY_SCORE: [nothing, nothing]})
    log(tmp_path, "c", **scores)
    trials = [{"run": str(run_folder(tmp_path, name)), "status": "done"} for name in "abc"]
    assert identity_score(of, trials) == pytest.approx(0.3)
    assert identity_score(other, trials) is None
    assert identity_score(of, trials[2:]) is None


@pytest.mark.parametrize(("metric", "best"), [(PSNR, [22.0, [2.0]]), ("validation/fid", [20.0, [1.0]])])
def test_the_best_checkpoint_of_a_trial_is_at_the_better_end(metric: str, best: list[Any], tmp_path: Path) -> None:
    values: dict[str, Any] = {metric: [20.0, 22.0, 21.0], metric + RESAMPLED_SUFFIX: [[1.0], [2.0], [3.0]]}
    log(tmp_path, "one", **values)
    assert state_of(tmp_path, "one", budget="9 images", metric=metric).score == best[0]
    assert resampled_of(run_folder(tmp_path, "one"), metric) == best[1]


def test_the_best_setting_is_at_the_better_end(tiny_plan: Callable[..., SweepPlan], tmp_path: Path) -> None:
    def rows(plan: SweepPlan) -> list[tuple[Trial, TrialState]]:
        trials = [Trial(f"lr={lr},seed={seed}", {}, seed, plan.bases["cyclegan"]) for lr in (1, 2) for seed in (0, 1)]
        return [(trial, TrialState("done", score=score)) for trial, score in zip(trials, (20.0, 21.0, 18.0, 25.0))]

    for metric, best in (("psnr_object_db", "lr=2,seed=1"), ("fid", "lr=1,seed=0")):
        plan = tiny_plan(metric=metric, seeds=2)
        assert summary(plan, rows(plan), tmp_path)["best"] == best


def test_settings_without_all_seeds_are_not_ranked(tiny_plan: Callable[..., SweepPlan], tmp_path: Path) -> None:
    plan = tiny_plan(seeds=2)
    trials = [
        Trial(f"lr={lr},seed={seed}", {"lr": lr}, seed, plan.bases["cyclegan"]) for lr in (1, 2) for seed in (0, 1)
    ]
    states = [TrialState("done", score=score) for score in (0.3, 0.2, 0.1)] + [TrialState("failed")]
    found = summary(plan, list(zip(trials, states)), tmp_path)
    assert found["best"] == "lr=1,seed=1"
    assert list(ranked(plan, found["trials"])) == [trials[0].setting]
    assert list(ranked(plan, found["trials"][1:])) == [trials[0].setting, trials[2].setting], "none has all"


@pytest.mark.parametrize(
    ("metric", "data", "said"),
    [
        (SCORE, {"validation": 0}, r"set data\.validation"),
        ("psnr_truth_db", {}, "not available for a2b on held-out pictures"),
    ],
)
def test_a_metric_that_cannot_be_had_is_refused_before_anything_starts(
    metric: str,
    data: dict[str, Any],
    said: str,
    tiny_plan: Callable[..., SweepPlan],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ray_session", None)
    base = {"cyclegan": tiny_plan().bases["cyclegan"].change(data=data)}
    with pytest.raises(ValueError, match=said):
        sweep(tiny_plan(metric=metric, bases=base), tmp_path, command="velogan sweep", log=StatusLog(quiet=True))
    assert not (tmp_path / "trials").exists()
