"""A whole sweep: what is left to do is done, the chosen runs are tested, and `sweep.json` and the page are written."""

from __future__ import annotations

import json
import os
import random
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from velogan.data.sets.sources import find_sources
from velogan.engine.ray_session import ray_session
from velogan.evaluation.metric import check_metric, higher_is_better
from velogan.evaluation.validation import FEATURE_SCORE, IDENTITY_SCORE, SCORE
from velogan.files import write_text
from velogan.observe.log import read_stats
from velogan.report.sweep_page import describe_no_gain, write_sweep_page
from velogan.store.lock import locked
from velogan.sweep.folder import (
    TrialState,
    check_length,
    note,
    noted,
    resampled_of,
    run_folder,
    state_of,
)
from velogan.sweep.pictures import held_out_pictures
from velogan.sweep.plan import SweepPlan, Trial
from velogan.sweep.scheduling import Earlier, require_tune, run_trials
from velogan.sweep.status_log import StatusLog
from velogan.sweep.tested import chosen_figures
from velogan.sweep.verdict import verdicts
from velogan.training.run_folder import RunFolder

Rows = list[tuple[Trial, TrialState]]


def sweep(
    plan: SweepPlan,
    out: Path,
    *,
    command: str,
    table: StatusLog,
    parallel: int | None = None,
    address: str | None = None,
) -> dict[str, Any]:
    """Runs `plan` in the folder `out`, or what is left of it; returns `trials`, `best` and `page`.

    `parallel` is how many trials run at a time, `address` where Ray runs. ValueError for what the user can mend, before
    anything is started.
    """
    known = plan.known_trials()
    rows = rows_of(plan, out, known)  # of optuna what it has tried
    check_folders(out, [trial for trial, _ in rows])
    require_tune(address)
    check_measured(plan, rows, out)
    _check_metric(plan, known)
    with locked(out):
        began = time.time()
        load = os.getloadavg()[0]
        step = _step(plan, out, known, table)
        try:
            _train(plan, out, known, command=command, parallel=parallel, address=address, step=step)
        finally:
            step(last=True)
        facts = {
            "command": command,
            "seconds": time.time() - began,
            "load": [round(one, 2) for one in (load, os.getloadavg()[0])],
            "budget": plan.budget,
            "metric": plan.metric,
            "better": "higher" if higher_is_better(plan.metric) else "lower",
            "search": plan.search,
            "stop_early": plan.stop_early,
            "vary": [axis.field for axis in plan.axes],
            "seeds": plan.seeds,
        }
        return _finish(plan, out, rows_of(plan, out, known), facts, table)


def _finish(plan: SweepPlan, out: Path, rows: Rows, facts: Mapping[str, Any], table: StatusLog) -> dict[str, Any]:
    """Tests the chosen runs, writes `sweep.json` and the page, and returns what the command prints."""
    result = summary(plan, rows, out)
    tested = chosen_figures(plan, result, out, table)
    trials = [{**one, "test_scores": tested.get(one["name"])} for one in result["trials"]]
    complete = ranked(plan, trials)
    scores = {name: [one["score"] for one in found] for name, found in complete.items()}
    resampled = {
        name: [resampled_of(Path(one["run"]), plan.metric) for one in found] for name, found in complete.items()
    }
    judged = verdicts(scores, resampled, higher=higher_is_better(plan.metric))
    found = {**result, "trials": trials, **facts, "verdicts": judged}
    winner = str(run_folder(out, str(result["best"])))
    found |= {"again": shlex.join(["velogan", "train", "--config", winner, "--out", "runs/winner"])}
    found |= {"nothing": doing_nothing(plan.metric, trials)}
    if said := describe_no_gain(found):
        table.say(said)
    pictures = held_out_pictures(found, say=table.say)
    page = write_sweep_page({**found, "pictures": pictures}, out / "sweep.html")
    kept = json.dumps({**found, "page": str(page)}, indent=1, default=str)
    write_text(out / "sweep.json", kept)
    return {key: json.loads(kept)[key] for key in ("trials", "best", "page")}


def doing_nothing(metric: str, trials: Sequence[Mapping[str, Any]]) -> float | None:
    """The mean over trials of the metric of the inputs as they are; None where the logs do not have it."""
    logs = [read_stats(Path(one["run"])) for one in trials if one["status"] == "done"]
    found = [next((row for row in reversed(rows) if IDENTITY_SCORE in row), {}) for rows in logs]
    values = [
        row[IDENTITY_SCORE] for row in found if row and metric == (FEATURE_SCORE if FEATURE_SCORE in row else SCORE)
    ]
    return fmean(values) if values else None


def check_folders(out: Path, trials: Sequence[Trial]) -> None:
    """ValueError where a trial's folder holds another run than the trial: then another --out is needed."""
    for trial in trials:
        try:
            RunFolder.open(run_folder(out, trial.name), trial.config, say=lambda text: None)
            check_length(out, trial.name, budget=trial.config.train.length)
        except ValueError as error:
            raise ValueError(f"{out} holds the trials of another sweep: name a new --out ({error})") from None


def check_measured(plan: SweepPlan, rows: Rows, out: Path) -> None:
    """ValueError where a trial was scored, but not by the plan's metric: its scores cannot be compared."""
    for trial, _ in rows:
        run = run_folder(out, trial.name)
        if any(SCORE in row and plan.metric not in row for row in (read_stats(run) if run.is_dir() else [])):
            raise ValueError(
                f"{out} holds trials without {plan.metric}, {trial.name} for one: name a new --out, or the --metric "
                "that they were trained with"
            )


def _check_metric(plan: SweepPlan, known: Sequence[Trial]) -> None:
    """ValueError where the metric cannot be had of some trial's pictures. Pictures that are missing fail later."""
    trials = known or [plan.trial({axis.field: axis.draw(random.Random(0)) for axis in plan.axes}, 0)]
    configs = {str((one.config.data, one.config.method)): one.config for one in trials}
    for config in configs.values():
        try:
            sources = find_sources(config.data)
        except ValueError:
            continue
        check_metric(plan.metric, config.method, config.spec, sources, data=config.data, device=config.engine.device)


def rows_of(plan: SweepPlan, out: Path, known: Sequence[Trial]) -> Rows:
    """All trials of the plan with their states: those `known`, or those that optuna has tried so far."""
    trials = list(known) if plan.search != "optuna" else _tried(plan, out)
    return [(trial, state_of(out, trial.name, budget=plan.budget, metric=plan.metric)) for trial in trials]


def summary(plan: SweepPlan, rows: Rows, out: Path) -> dict[str, Any]:
    """`trials`, and `best`: the trial with the best score of the setting with the best mean over its seeds."""
    trials = [
        {
            "name": trial.name,
            "setting": trial.setting,
            "settings": dict(trial.settings),
            "seed": trial.seed,
            "status": state.status,
            "reason": state.reason,
            "score": state.score,
            "seconds": round(state.seconds, 3),
            "images": state.images,
            "run": str(run_folder(out, trial.name)),
        }
        for trial, state in rows
    ]
    whole = ranked(plan, trials)
    sign = -1 if higher_is_better(plan.metric) else 1
    best = min(whole.values(), key=lambda found: sign * fmean(one["score"] for one in found), default=None)
    return {"trials": trials, "best": min(best, key=lambda one: sign * one["score"])["name"] if best else None}


def ranked(plan: SweepPlan, trials: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """By setting, its trials with a score: those of settings that have all seeds, or of all where none has."""
    settings: dict[str, list[Mapping[str, Any]]] = {}
    for one in trials:
        if one["status"] == "done" and one["score"] is not None:
            settings.setdefault(one["setting"], []).append(one)
    return {name: found for name, found in settings.items() if len(found) == plan.seeds} or settings


def _train(
    plan: SweepPlan,
    out: Path,
    known: Sequence[Trial],
    *,
    command: str,
    parallel: int | None,
    address: str | None,
    step: Callable[[], None],
) -> None:
    rows = rows_of(plan, out, known)
    left = [trial for trial, state in rows if state.status not in ("done", "stopped early")]
    earlier: Earlier = _earlier(plan, rows) if plan.search == "optuna" else []
    samples = (plan.trials or 0) - sum(score is not None for _, score in earlier)
    if not (samples > 0 if plan.search == "optuna" else left):
        return
    for trial in left:
        if kept := noted(out, trial.name):  # how it ended an earlier time is no news
            note(out, trial.name, **{**kept, "status": "waiting", "reason": ""})
    with ray_session(address):
        run_trials(plan, out, left, parallel=parallel, command=command, step=step, earlier=earlier, samples=samples)


def _step(plan: SweepPlan, out: Path, known: Sequence[Trial], table: StatusLog) -> Callable[..., None]:
    def step(*, last: bool = False) -> None:
        if last or table.due():
            table.show([(trial.name, state) for trial, state in rows_of(plan, out, known)])

    return step


def _tried(plan: SweepPlan, out: Path) -> list[Trial]:
    """The trials of an optuna search that have a status and settings of this plan."""
    trials = []
    for path in sorted((out / "status").glob("*.json")):
        kept = noted(out, path.stem)
        settings = kept.get("settings")
        if isinstance(settings, dict) and list(settings) == [axis.field for axis in plan.axes]:
            trials.append(plan.trial(settings, kept["seed"]))
    return [trial for trial in trials if trial.seed < plan.seeds]


def _earlier(plan: SweepPlan, rows: Rows) -> Earlier:
    """Settings that optuna tried before, with the mean of their scores; None where a seed is still to be run."""
    found: dict[str, list[tuple[Trial, TrialState]]] = {}
    for trial, state in rows:
        found.setdefault(trial.setting, []).append((trial, state))
    earlier = []
    for group in found.values():
        scores = [
            state.score for _, state in group if state.status in ("done", "stopped early") and state.score is not None
        ]
        earlier.append((group[0][0].settings, fmean(scores) if len(scores) == plan.seeds else None))
    return earlier
