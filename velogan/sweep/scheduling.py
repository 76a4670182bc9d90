"""Ray Tune runs the trials: which one next, where, how many at a time, which to stop early. It keeps nothing."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from velogan.engine.ray_session import QUIET, require_ray
from velogan.evaluation.metric import higher_is_better
from velogan.sweep.folder import read_status, write_status
from velogan.sweep.plan import SweepPlan, Trial
from velogan.sweep.trial import run_trial

FIRST_STOP = 10
"""Percent of the budget that every trial gets before `asha` compares it with others."""

KEPT = 3
"""Of so many trials one goes on, at each comparison of `asha`."""

MAX_LOSSES = 3
"""How often a trial is started again elsewhere, where a node of the cluster is lost."""


def require_tune(address: str | None = None) -> None:
    """ValueError, one sentence, where the extra is not installed."""
    if address and address.startswith("ray://") and (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray reads it on import, and by itself on the cluster alone
    require_ray("sweep", "optuna", "ray.tune", user="velogan sweep")


def resources(*, parallel: int | None, trials: int, device: str) -> dict[str, float]:
    """Return what Tune gives each trial: equal parts of the connected Ray, by default a GPU each, else a core.

    A trial lies on one node. `device` is what engine.device says.
    """
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cores = [int(node.get("CPU", 0)) for node in nodes]
    gpus = sum(node.get("GPU", 0.0) for node in nodes) if device == "auto" or device.startswith("cuda") else 0.0
    return shared(sum(cores), gpus, parallel=parallel, largest=max(cores), trials=trials)


def shared(cores: int, gpus: float, *, parallel: int | None, largest: int, trials: int) -> dict[str, float]:
    """Divide the `cores` and `gpus` of all nodes; `largest` are the cores of the largest node."""
    count = max(1, min(parallel or (int(gpus) if gpus >= 1 else cores), trials))
    share = gpus / count
    share = math.floor(share) if share >= 1 else math.floor(1000 * share) / 1000  # what Ray takes
    return {"cpu": max(1, min(cores // count, largest)), "gpu": share}


def run_trials(
    plan: SweepPlan,
    out: Path,
    trials: Sequence[Trial],
    *,
    parallel: int | None,
    command: str,
    step: Callable[[], None],
) -> None:
    """Run `trials`, or with `optuna` the settings that it chooses; call `step` every two seconds.

    Tune runs in a worker of its own, as through ray:// this process is no part of the cluster.
    """
    import ray

    count = len(trials) or (plan.trials or 0) * plan.seeds
    share = resources(parallel=parallel, trials=count, device=next(iter(plan.bases.values())).engine.device)
    job = _Job(plan, out.resolve(), tuple(trials), share, parallel, command, Path.cwd())
    task = ray.remote(num_cpus=0)(_tune).remote(job)
    while not ray.wait([task], timeout=2.0)[0]:
        step()
    ray.get(task)


def _tune(job: _Job) -> None:
    os.environ.update(QUIET)
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    plan = job.plan
    asha = ASHAScheduler(time_attr="percent", max_t=101, grace_period=FIRST_STOP, reduction_factor=KEPT)
    space: dict[str, Any] = {"param_space": {"index": tune.grid_search(list(range(len(job.trials))))}}
    chooser: dict[str, Any] = {}
    if plan.search == "optuna":
        space, chooser = {}, {"search_alg": _search(plan), "num_samples": (plan.trials or 0) * plan.seeds}
    with tempfile.TemporaryDirectory(prefix="velogan-tune-", ignore_cleanup_errors=True) as folder:
        tuner = tune.Tuner(
            tune.with_resources(partial(_run, job=job), job.share),
            tune_config=tune.TuneConfig(
                metric="score",
                mode="min",
                scheduler=asha if plan.stop_early else None,
                max_concurrent_trials=job.parallel,
                reuse_actors=False,  # a training that was stopped ends with its process
                **chooser,
            ),
            run_config=tune.RunConfig(
                storage_path=folder,
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=MAX_LOSSES),
            ),
            **space,
        )
        for result in tuner.fit():
            _note_end(job, result)


def _note_end(job: _Job, result: Any) -> None:
    """Keep how a trial ended that did not end by itself: `asha` stopped it, or its worker was lost."""
    name = job.trial(result.config).name
    kept = dict(read_status(job.out, name))
    status, _ = kept.pop("status", ""), kept.pop("reason", "")
    if status in ("done", "failed"):
        return
    if result.error:
        write_status(job.out, name, "failed", str(result.error).strip().splitlines()[-1], **kept)
    else:
        at = (result.metrics or {}).get("percent", 0)
        write_status(job.out, name, "stopped early", f"at {at} % of its budget it was not among the best third", **kept)


@dataclass(frozen=True)
class _Job:
    """What a worker must know."""

    plan: SweepPlan
    out: Path
    trials: tuple[Trial, ...]
    share: dict[str, float]
    parallel: int | None
    command: str
    here: Path

    def trial(self, config: Mapping[str, Any]) -> Trial:
        """Which trial Tune means."""
        if "index" in config:
            return self.trials[config["index"]]
        settings = {
            axis.field: axis.rounded(config[axis.field]) if axis.is_range else config[axis.field]
            for axis in self.plan.axes
        }
        return self.plan.trial(settings, config.get("__trial_index__", 0))


def _run(config: Mapping[str, Any], *, job: _Job) -> None:
    """What a worker of Ray does for one trial."""
    from ray import tune

    os.chdir(job.here)  # a Ray that ran before has another folder, and paths of pictures may be relative
    trial, lowest, sign = job.trial(config), math.inf, _sign(job.plan)

    def report(percent: int, score: float) -> None:
        nonlocal lowest
        lowest = min(lowest, sign * score)
        tune.report({"percent": percent, "score": lowest})

    origin = {"preset": trial.settings.get("preset", next(iter(job.plan.bases))), "command": job.command}
    found = run_trial(job.out, trial, job.plan, threads=int(job.share["cpu"]), origin=origin, report=report)
    if found.status != "done" or math.isinf(lowest):  # Tune would start again what raises; asha compares none at 0 %
        tune.report({"percent": 0, "score": math.inf})


def _search(plan: SweepPlan) -> Any:
    """Return optuna's search over the plan's axes, which gets the mean over the seeds of each setting."""
    import optuna
    from ray.tune.search import Repeater
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space: dict[str, Any] = {}
    for axis in plan.axes:
        if not axis.is_range:
            space[axis.field] = optuna.distributions.CategoricalDistribution(axis.values)
        elif axis.whole:
            space[axis.field] = optuna.distributions.IntDistribution(int(axis.low), int(axis.high), log=axis.log)
        else:
            space[axis.field] = optuna.distributions.FloatDistribution(axis.low, axis.high, log=axis.log)
    search = OptunaSearch(space, metric="score", mode="min", seed=0)
    return Repeater(search, repeat=plan.seeds) if plan.seeds > 1 else search


def _sign(plan: SweepPlan) -> int:
    """What scores are multiplied by for Tune, for which lower is better."""
    return -1 if higher_is_better(plan.metric) else 1
