"""A trial from its start to its end: cores, the child process, reports of progress, what became of it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from velogan.engine.child import ask
from velogan.sweep.cores import held
from velogan.sweep.folder import TrialState, log_file, note, run_folder, saved, scores_of, share, state_of

MOST_DEATHS = 3
"""How often a trial may be killed in a row without getting on; then it has failed."""

Report = Callable[[int, float], None]
"""Takes whole percent of the budget and the score there; whatever it raises ends the trial."""


def attempt(
    out: Path,
    name: str,
    config: Mapping[str, Any],
    *,
    budget: str,
    metric: str,
    cores: int,
    origin: Mapping[str, Any],
    report: Report,
    facts: Mapping[str, Any] = MappingProxyType({}),
) -> TrialState:
    """Trains until done, failed, or `report` raises; a killed run goes on from its checkpoint. Writes the status.

    `cores` are how many it computes with, and stays on, unless `config` says engine.threads. What is done already is
    only reported. `facts` are kept with the status.
    """
    told: set[int] = set()
    if (found := state_of(out, name, budget=budget, metric=metric)).status == "done":
        _tell(out, name, budget, metric, told, report)
        note(out, name, "done", **facts)
        return found
    with held(cores) as mine:
        facts = {**facts, "cores": mine, "host": socket.gethostname()}
        note(out, name, "running", **facts)
        engine = {**config["engine"], "threads": config["engine"]["threads"] or len(mine)}
        request = {"run": str(run_folder(out, name)), "config": {**config, "engine": engine}}
        request |= {"origin": origin, "metric": metric}
        deaths = 0
        while deaths < MOST_DEATHS:
            before = saved(run_folder(out, name))[0]
            with open(log_file(out, name), "ab") as said:
                tell = partial(_tell, out, name, budget, metric, told, report)
                code, answer = ask("velogan.sweep.child", request, cores=mine, said=said, meanwhile=tell)
            _tell(out, name, budget, metric, told, report)
            if code >= 0:
                break
            deaths = 1 if saved(run_folder(out, name))[0] > before else deaths + 1
        if state_of(out, name, budget=budget, metric=metric).status == "done":
            note(out, name, "done", **facts)
        else:
            asked = "it stopped before its budget was used up: somebody asked it to"
            note(out, name, "failed", answer.get("error") or _killed(code, deaths) or asked, **facts)
        return state_of(out, name, budget=budget, metric=metric)


def _killed(code: int, deaths: int) -> str:
    if code >= 0:
        return "" if code == 0 else f"it ended with exit code {code}"
    why = "; signal 9 without anybody's doing means that memory ran out" if code == -9 else ""
    return f"it was killed by signal {-code} {deaths} times{why}"


def _tell(out: Path, name: str, budget: str, metric: str, told: set[int], report: Report) -> None:
    """Reports the scores that have come since the last time, one for each percent."""
    for row in scores_of(run_folder(out, name), metric):
        percent = share(budget, images=int(row["images"]), seconds=row["seconds"])
        if percent not in told:
            told.add(percent)
            report(percent, row["score"])
