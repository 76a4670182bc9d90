"""One trial: its files, its state, and its training within a worker of Ray Tune.

DIR/trials/NAME         an ordinary run folder
DIR/status/NAME.json    how the last attempt ended, and why
DIR/status/NAME.log     the stderr stream of the run
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Literal

from velogan.config import Config
from velogan.engine.duration import parse_span
from velogan.evaluation.metric import RESAMPLED_SUFFIX, MetricValidation, higher_is_better
from velogan.files import write_text
from velogan.observe.log import read_stats
from velogan.observe.progress import Display
from velogan.store.lock import lock_folder
from velogan.sweep.plan import SweepPlan, Trial
from velogan.training.run import train

POLL_S = 0.5

LOCK_S = 60.0
"""Seconds to wait for the process that has locked the run folder: a lost worker may still be saving."""

Status = Literal["waiting", "running", "done", "failed", "stopped early"]

Report = Callable[[int, float], None]
"""A function that receives the percentage of the budget that is done, and the score at that point."""


@dataclass(frozen=True)
class TrialState:
    """Status and progress of a trial: `images`, training `seconds` and best `score` (None before the first).

    `reason` says why it failed or was stopped.
    """

    status: Status
    reason: str = ""
    images: int = 0
    seconds: float = 0.0
    score: float | None = None


def run_folder(out: Path, name: str) -> Path:
    """Return the run folder of a trial."""
    return out / "trials" / name


def log_file(out: Path, name: str) -> Path:
    """Return the file with the stderr stream of a trial."""
    return out / "status" / f"{name}.log"


def status_file(out: Path, name: str) -> Path:
    """Return the file that `write_status` writes."""
    return out / "status" / f"{name}.json"


def write_status(out: Path, name: str, status: Status, reason: str = "", **facts: Any) -> None:
    """Save the status of a trial, with `facts` such as its settings."""
    status_file(out, name).parent.mkdir(parents=True, exist_ok=True)
    write_text(status_file(out, name), json.dumps({"status": status, "reason": reason, **facts}))


def read_status(out: Path, name: str) -> dict[str, Any]:
    """Return what `write_status` saved last; empty if the file is missing or damaged."""
    try:
        return dict(json.loads(status_file(out, name).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def read_trial(out: Path, name: str, plan: SweepPlan) -> TrialState:
    """Return a trial's state: `waiting` if not yet started with this budget, or if it is done but has no log."""
    rows, saved = read_stats(run_folder(out, name)), read_status(out, name)
    is_current = saved.get("budget") == plan.budget and (rows or saved["status"] != "done")
    best = best_row(rows, plan.metric)
    return TrialState(
        saved["status"] if is_current else "waiting",
        saved["reason"] if is_current else "",
        images=max((int(row["images"]) for row in rows), default=0),
        seconds=max((row.get("seconds") or 0.0 for row in rows), default=0.0),
        score=best[plan.metric] if best else None,
    )


def best_row(rows: Sequence[Mapping[str, Any]], metric: str) -> Mapping[str, Any] | None:
    """Return the first row of a log with the best value of the metric; None if no row has it."""
    scored = [row for row in rows if isinstance(row.get(metric), int | float)]
    sign = -1 if higher_is_better(metric) else 1
    return min(scored, key=lambda row: sign * row[metric], default=None)


def read_resampled_scores(run: Path, metric: str) -> list[float | None] | None:
    """Return the metric on bootstrap resamples of the held-out images, at the best checkpoint; None if unknown."""
    best = best_row(read_stats(run), metric)
    return best.get(metric + RESAMPLED_SUFFIX) if best else None


def read_scores(run: Path, metric: str) -> list[dict[str, float]]:
    """Return the scores in a run's log, oldest first, with the `images` and `seconds` of training until then."""
    scores, seconds = [], 0.0
    for row in read_stats(run):
        seconds = row.get("seconds") or seconds
        if isinstance(row.get(metric), int | float):
            scores.append({"images": row["images"], "seconds": seconds, "score": row[metric]})
    return scores


def run_trial(
    out: Path, trial: Trial, plan: SweepPlan, *, threads: int, origin: Mapping[str, Any], report: Report
) -> TrialState:
    """Train or resume a trial and call `report` for each new percentage with a score; save and return its state.

    If `report` raises, training continues in its thread until this process ends, which Tune takes care of.
    threads: number of CPU threads, unless the configuration sets engine.threads
    """
    run, reported = run_folder(out, trial.name), set[int]()

    def report_new() -> None:
        for row in read_scores(run, plan.metric):
            percent = percent_done(plan.budget, images=int(row["images"]), seconds=row["seconds"])
            if percent not in reported:
                reported.add(percent)
                report(percent, row["score"])

    facts = {"settings": dict(trial.settings), "seed": trial.seed, "budget": plan.budget, "host": socket.gethostname()}
    write_status(out, trial.name, "running", **facts)
    config = trial.config.change(engine={"threads": trial.config.engine.threads or threads})
    training = partial(_train, config, run, log_file(out, trial.name), plan.metric, origin)
    reasons = ["training ended without a result"]
    trainer = Thread(target=lambda: reasons.append(training()), daemon=True)
    trainer.start()
    while trainer.is_alive():
        trainer.join(POLL_S)
        report_new()
    report_new()
    write_status(out, trial.name, "failed" if reasons[-1] else "done", reasons[-1], **facts)
    return read_trial(out, trial.name, plan)


def percent_done(budget: str, *, images: int, seconds: float) -> int:
    """Return the integer percentage of `budget` (`500 images`, `10 minutes`) that is done, at most 100."""
    span = parse_span(budget)
    fraction = images / span.amount if span.unit == "images" else seconds / (60 * span.amount)
    return min(100, int(100 * fraction + 1e-6))


def _train(config: Config, run: Path, log: Path, metric: str, origin: Mapping[str, Any]) -> str:
    """Train in the folder `run`, scored by the `metric` at each checkpoint; return the reason for a failure or ""."""
    with open(log, "a", encoding="utf-8") as stream, redirect_stderr(stream), Display() as display:
        try:
            _wait_for_lock(run)
            validation = partial(MetricValidation, metric=metric)
            result = train(config, run, display=display, origin=origin, build_validation=validation)
        except ValueError as error:
            return str(error)
        except Exception as error:  # any error ends only this trial
            lines = str(error).strip().splitlines() or ["no message"]
            return f"{type(error).__name__}: {lines[0]}"
    return "" if result.finished else "training was stopped before the end of its budget"


def _wait_for_lock(run: Path) -> None:
    """Wait until no process locks the run folder. Raises ValueError if it is still locked after `LOCK_S`."""
    deadline = time.monotonic() + LOCK_S
    while (run / ".lock").exists():
        try:
            with lock_folder(run):
                return
        except ValueError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)
