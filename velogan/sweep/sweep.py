"""Run a sweep: train the remaining trials, test the best setting, and write `sweep.json` and the page."""

from __future__ import annotations

import json
import random
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from velogan.config import read_config
from velogan.data.sets.sources import find_sources
from velogan.engine.device import resolve_device
from velogan.engine.duration import parse_span
from velogan.engine.ray_session import ray_session
from velogan.evaluation.evaluate import evaluate
from velogan.evaluation.metric import check_metric, evaluation_options, higher_is_better
from velogan.evaluation.validation import FEATURE_SCORE, IDENTITY_SCORE, SCORE
from velogan.files import write_text
from velogan.observe.log import read_stats
from velogan.observe.progress import printable
from velogan.report.sweep_page import describe_no_gain, write_sweep_page
from velogan.store.lock import lock_folder
from velogan.sweep.pictures import held_out_pictures
from velogan.sweep.plan import SweepPlan, Trial
from velogan.sweep.scheduling import require_tune, run_trials
from velogan.sweep.trial import TrialState, read_resampled_scores, read_status, read_trial, run_folder, status_file
from velogan.sweep.verdict import compare_settings
from velogan.training.run_folder import open_run

Rows = list[tuple[Trial, TrialState]]

_ENDED = ("done", "stopped early")


class StatusLog:
    """Prints status changes of trials on standard error, unless `quiet`; `print_line` always prints."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console, self._quiet = Console(stderr=True), quiet
        self._shown: dict[str, str] = {}

    def print_line(self, text: str) -> None:
        """Print one line."""
        self._console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def show(self, rows: Rows) -> None:
        """Print a line for each trial whose status has changed."""
        for trial, state in rows:
            if not self._quiet and state.status not in ("waiting", self._shown.get(trial.name)):
                self._shown[trial.name] = state.status
                score = "" if state.score is None else f", score {state.score:.4g}"
                self.print_line(f"{trial.name}: {state.status}{score}{f' ({state.reason})' if state.reason else ''}")


def sweep(
    plan: SweepPlan,
    out: Path,
    trials: Sequence[Trial],
    *,
    command: str,
    log: StatusLog,
    parallel: int | None = None,
    address: str | None = None,
) -> dict[str, Any]:
    """Run the unfinished trials of `plan` in the folder `out`; return `trials`, `best` and `page` of `sweep.json`.

    trials: from `check_plan`
    parallel: maximum number of simultaneous trials
    address: address of a running Ray cluster
    """
    require_tune(address)
    with lock_folder(out):
        started_at = time.time()
        remaining = [trial for trial, state in read_rows(plan, out, trials) if state.status not in _ENDED]
        for trial in remaining:
            status_file(out, trial.name).unlink(missing_ok=True)  # else its last attempt would be shown as the new one
        try:
            if remaining or plan.search == "optuna":
                with ray_session(address):
                    run_trials(
                        plan, out, remaining, parallel, command, poll=lambda: log.show(read_rows(plan, out, trials))
                    )
        finally:
            log.show(read_rows(plan, out, trials))
        facts = plan.model_dump(include={"metric", "search", "stop_early", "seeds"}) | {
            "command": command,
            "seconds": time.time() - started_at,
            "budget": plan.budget,
            "better": "higher" if higher_is_better(plan.metric) else "lower",
            "vary": [dimension.field for dimension in plan.dimensions],
        }
        return _finish(plan, out, read_rows(plan, out, trials), facts, log)


def check_plan(plan: SweepPlan, out: Path | None) -> list[Trial]:
    """Return the known trials. Raises ValueError if the metric does not fit the images or `out` holds other trials."""
    trials = plan.known_trials()
    if plan.search == "optuna" and out and (out / "trials").exists():
        raise ValueError(f"{out} holds trials, and --search optuna does not resume: choose a new --out")
    if out:
        for trial in trials:
            _check_folder(run_folder(out, trial.name), trial, out, plan.metric)
    _check_metric(plan, trials)
    return trials


def _finish(plan: SweepPlan, out: Path, rows: Rows, facts: Mapping[str, Any], log: StatusLog) -> dict[str, Any]:
    """Test the best setting, write `sweep.json` and the page, and return what the command prints."""
    result = {**summarize(plan, rows, out), **facts}
    add_test_scores(plan, result, log)
    groups = group_by_setting(plan, result["trials"])
    scores = {name: [trial["score"] for trial in group] for name, group in groups.items()}
    resampled = {
        name: [read_resampled_scores(Path(trial["run"]), plan.metric) for trial in group]
        for name, group in groups.items()
    }
    result["verdicts"] = compare_settings(scores, resampled, higher_is_better=higher_is_better(plan.metric))
    winner = str(run_folder(out, str(result["best"])))
    result["again"] = shlex.join(["velogan", "train", "--config", winner, "--out", "runs/winner"])
    result["unchanged_input"] = unchanged_input_score(plan.metric, result["trials"])
    if no_gain := describe_no_gain(result):
        log.print_line(no_gain)
    pictures = held_out_pictures(result, print_line=log.print_line)
    result["page"] = str(write_sweep_page({**result, "pictures": pictures}, out / "sweep.html"))
    saved = json.dumps(result, indent=1, default=str)
    write_text(out / "sweep.json", saved)
    return {key: json.loads(saved)[key] for key in ("trials", "best", "page")}


def add_test_scores(plan: SweepPlan, result: Mapping[str, Any], log: StatusLog) -> None:
    """Add `test_scores`, by name and direction, to the finished runs of the best setting in `result`."""
    best = next((trial["setting"] for trial in result["trials"] if trial["name"] == result["best"]), None)
    for trial in result["trials"]:
        if trial["setting"] != best or trial["status"] != "done":
            continue
        run = Path(trial["run"])
        try:
            device = resolve_device(read_config(run).engine.device)
            scores = evaluate(run, checkpoint="best", device=device, **evaluation_options(plan.metric))["scores"]
        except (ValueError, OSError) as error:
            log.print_line(f"{run} cannot be tested: {error}")
            continue
        trial["test_scores"] = {
            f"{score['name']}_{score['direction']}": score["value"]
            for score in scores
            if score.get("split", "test") == "test" and score["weights"] == "ema"
        }


def unchanged_input_score(metric: str, trials: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the score of the unchanged inputs, averaged over finished trials; None if not logged for `metric`."""
    logs = [read_stats(Path(trial["run"])) for trial in trials if trial["status"] == "done"]
    last = [next((row for row in reversed(rows) if IDENTITY_SCORE in row), {}) for rows in logs]
    values = [
        row[IDENTITY_SCORE] for row in last if row and metric == (FEATURE_SCORE if FEATURE_SCORE in row else SCORE)
    ]
    return fmean(values) if values else None


def _check_folder(run: Path, trial: Trial, out: Path, metric: str) -> None:
    """Raise ValueError if the folder of a trial holds a run with another configuration or metric, or a longer run."""
    try:
        open_run(run, trial.config)
    except ValueError as error:
        raise ValueError(f"{out} holds the trials of another sweep: choose a new --out ({error})") from None
    scored = [row for row in read_stats(run) if SCORE in row]
    if scored and not any(metric in row for row in scored):
        raise ValueError(f"--metric {metric}: {run} was scored by another metric: choose a new --out")
    if (run / "config.yaml").exists():
        saved, budget = parse_span(read_config(run).train.length), parse_span(trial.config.train.length)
        if saved.unit != budget.unit or saved.amount > budget.amount:
            raise ValueError(
                f"{run} was trained for {saved}, and this sweep is of {budget}: runs of unequal lengths cannot be "
                f"compared; give at least {saved}, or choose a new --out"
            )


def _check_metric(plan: SweepPlan, trials: Sequence[Trial]) -> None:
    """Raise ValueError if the metric cannot be computed on a trial's images. Missing images are no error here."""
    trials = trials or [
        plan.build_trial({dimension.field: dimension.sample(random.Random(0)) for dimension in plan.dimensions}, 0)
    ]
    configs = {str((trial.config.data, trial.config.method)): trial.config for trial in trials}
    for config in configs.values():
        try:
            sources = find_sources(config.data)
        except ValueError:
            continue
        check_metric(plan.metric, config.method, config.spec, sources, data=config.data, device=config.engine.device)


def read_rows(plan: SweepPlan, out: Path, trials: Sequence[Trial]) -> Rows:
    """Return the plan's `trials`, or those that optuna has started so far, with their states."""
    if plan.search == "optuna":
        saved = [read_status(out, path.stem) for path in sorted((out / "status").glob("*.json"))]
        trials = [plan.build_trial(status["settings"], status["seed"]) for status in saved if "settings" in status]
    return [(trial, read_trial(out, trial.name, plan)) for trial in trials]


def summarize(plan: SweepPlan, rows: Rows, out: Path) -> dict[str, Any]:
    """Return `trials` as JSON values and `best`, the name of the best setting's best trial; None without scores."""
    trials = [
        {
            "name": trial.name,
            "setting": trial.setting_name,
            "settings": dict(trial.settings),
            "seed": trial.seed,
            "status": state.status,
            "reason": state.reason,
            "score": state.score,
            "test_scores": None,
            "seconds": round(state.seconds, 3),
            "images": state.images,
            "run": str(run_folder(out, trial.name)),
        }
        for trial, state in rows
    ]
    sign = -1 if higher_is_better(plan.metric) else 1
    groups = group_by_setting(plan, trials).values()
    best = min(groups, key=lambda group: sign * fmean(trial["score"] for trial in group), default=None)
    return {"trials": trials, "best": min(best, key=lambda trial: sign * trial["score"])["name"] if best else None}


def group_by_setting(plan: SweepPlan, trials: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Group the scored trials by setting; omit settings that lack the score of a seed, unless every setting does."""
    settings: dict[str, list[Mapping[str, Any]]] = {}
    for trial in trials:
        if trial["status"] == "done" and trial["score"] is not None:
            settings.setdefault(trial["setting"], []).append(trial)
    return {name: group for name, group in settings.items() if len(group) == plan.seeds} or settings
