"""One trial, within a worker of Ray Tune: it is trained, its scores are reported, and its status is kept."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from velogan.evaluation.metric import MetricValidation
from velogan.observe.progress import Display
from velogan.sweep.folder import TrialState, log_file, run_folder, scores_of, share, state_of, wait_for, write_status
from velogan.sweep.plan import SweepPlan, Trial
from velogan.training.run import train

POLL_S = 0.5

LOCK_S = 60.0
"""How long to wait for the process that has the run folder: one that was lost may still be saving."""

Report = Callable[[int, float], None]
"""Takes whole percent of the budget and the score there; whatever it raises ends the trial."""


def run_trial(
    out: Path, trial: Trial, plan: SweepPlan, *, threads: int, origin: Mapping[str, Any], report: Report
) -> TrialState:
    """Train until done, failed, or `report` raises; a run goes on from its checkpoint. Writes the status.

    What is done already is only reported. `threads` hold unless the configuration says engine.threads. If `report`
    raises, the training goes on until its process ends, which Tune sees to.
    """
    reported: set[int] = set()

    def report_new() -> None:
        for row in scores_of(run_folder(out, trial.name), plan.metric):
            percent = share(plan.budget, images=int(row["images"]), seconds=row["seconds"])
            if percent not in reported:
                reported.add(percent)
                report(percent, row["score"])

    facts = {"settings": dict(trial.settings), "seed": trial.seed, "budget": plan.budget, "host": socket.gethostname()}
    reason: list[str] = []
    if state_of(out, trial.name, budget=plan.budget, metric=plan.metric).status != "done":
        write_status(out, trial.name, "running", **facts)
        config = trial.config.change(engine={"threads": trial.config.engine.threads or threads})
        run = partial(_train, config, run_folder(out, trial.name), log_file(out, trial.name), plan.metric, origin)
        trainer = Thread(target=lambda: reason.append(run()), daemon=True)
        trainer.start()
        while trainer.is_alive():
            trainer.join(POLL_S)
            report_new()
    report_new()
    done = state_of(out, trial.name, budget=plan.budget, metric=plan.metric).status == "done"
    why = "" if done else "".join(reason) or "it stopped before its budget was used up: somebody asked it to"
    write_status(out, trial.name, "done" if done else "failed", why, **facts)
    return state_of(out, trial.name, budget=plan.budget, metric=plan.metric)


def _train(config: Any, run: Path, log: Path, metric: str, origin: Mapping[str, Any]) -> str:
    """Train in the folder `run`, scored by the `metric` at each checkpoint, and return why it failed, or nothing."""
    with open(log, "a", encoding="utf-8") as stream, redirect_stderr(stream), Display() as display:
        try:
            wait_for(run, until=time.monotonic() + LOCK_S)
            train(
                config, run, display=display, origin=origin, build_validation=partial(MetricValidation, metric=metric)
            )
        except ValueError as error:
            return str(error)
        except Exception as error:  # whatever it is, the other trials go on
            lines = str(error).strip().splitlines() or ["no text"]
            return f"{type(error).__name__}: {lines[0]}"
    return ""
