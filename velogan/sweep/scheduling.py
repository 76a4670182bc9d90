"""Run the trials with Ray Tune, which schedules them, divides the machines among them, and can stop them early."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from velogan.engine.ray_session import RAY_ENVIRONMENT, require_ray
from velogan.evaluation.metric import higher_is_better
from velogan.sweep.plan import SweepPlan, Trial
from velogan.sweep.trial import read_status, run_trial, write_status

GRACE_PERCENT = 10
"""Percentage of the budget that every trial gets before `asha` compares it with others."""

REDUCTION_FACTOR = 3
"""At each comparison `asha` continues the best one of this many trials."""

MAX_RESTARTS = 3
"""Maximum number of restarts of a trial after the loss of its machine."""


def require_tune(address: str | None = None) -> None:
    """Raise ValueError unless Ray Tune and optuna are installed; enable Ray's token for a cluster at `address`."""
    if address and address.startswith("ray://") and (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray reads it on import, and by itself only on the cluster
    require_ray("sweep", "optuna", "ray.tune", feature="velogan sweep")


def divide_resources(*, parallel: int | None, trials: int, device: str) -> dict[str, float]:
    """Return the number of CPU cores (`cpu`) and GPUs (`gpu`) of each trial, which runs on a single machine.

    parallel: number of simultaneous trials; by default one for each GPU, or each core if there is no GPU
    device: engine.device of the configuration
    """
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cores = [int(node.get("CPU", 0)) for node in nodes]
    gpus = sum(node.get("GPU", 0.0) for node in nodes) if device == "auto" or device.startswith("cuda") else 0.0
    count = max(1, min(parallel or (int(gpus) if gpus >= 1 else sum(cores)), trials))
    gpu = min(1.0, math.floor(1000 * gpus / count) / 1000)  # Ray takes three decimals
    return {"cpu": max(1, min(sum(cores) // count, max(cores))), "gpu": gpu}


def run_trials(
    plan: SweepPlan, out: Path, trials: Sequence[Trial], parallel: int | None, command: str, *, poll: Callable[[], None]
) -> None:
    """Run `trials`, or with `optuna` the settings that it chooses; call `poll` every two seconds.

    Tune runs in a worker, since with an address ray:// this process is not in the cluster. Raises OSError if it fails.
    """
    import ray
    from ray.exceptions import RayError

    count = len(trials) or (plan.trials or 0) * plan.seeds
    device = next(iter(plan.bases.values())).engine.device
    resources = divide_resources(parallel=parallel, trials=count, device=device)
    job = _Job(plan, out.resolve(), tuple(trials), resources, parallel, command, Path.cwd())
    task = ray.remote(num_cpus=0)(_tune).remote(job)
    while not ray.wait([task], timeout=2.0)[0]:
        poll()
    try:
        ray.get(task)
    except RayError as error:
        if isinstance(cause := getattr(error, "cause", None), OSError):
            raise cause from None
        raise OSError(f"Ray Tune failed: {str(error).strip().splitlines()[-1]}") from None


def _tune(job: _Job) -> None:
    os.environ.update(RAY_ENVIRONMENT)
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    plan = job.plan
    asha = ASHAScheduler(time_attr="percent", max_t=101, grace_period=GRACE_PERCENT, reduction_factor=REDUCTION_FACTOR)
    space: dict[str, Any] = {"param_space": {"index": tune.grid_search(list(range(len(job.trials))))}}
    search: dict[str, Any] = {}
    if plan.search == "optuna":
        space, search = {}, {"search_alg": _optuna_search(plan), "num_samples": (plan.trials or 0) * plan.seeds}
    with tempfile.TemporaryDirectory(prefix="velogan-tune-", ignore_cleanup_errors=True) as folder:
        tuner = tune.Tuner(
            tune.with_resources(partial(_run, job=job), job.resources),
            tune_config=tune.TuneConfig(
                metric="score",
                mode="min",
                scheduler=asha if plan.stop_early else None,
                max_concurrent_trials=job.parallel,
                reuse_actors=False,  # training that is stopped early only ends with its process
                **search,
            ),
            run_config=tune.RunConfig(
                storage_path=folder,
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=MAX_RESTARTS),
            ),
            **space,
        )
        for result in tuner.fit():
            _save_final_status(job, result)


def _save_final_status(job: _Job, result: Any) -> None:
    """Save the status of a trial that did not end by itself: `asha` stopped it, or its worker was lost."""
    trial = job.build_trial(result.config)
    name, facts = trial.name, {"settings": dict(trial.settings), "seed": trial.seed, "budget": job.plan.budget}
    facts |= read_status(job.out, name)  # empty if the worker was lost at once
    status, _ = facts.pop("status", ""), facts.pop("reason", "")
    if status in ("done", "failed"):
        return
    if result.error:
        write_status(job.out, name, "failed", str(result.error).strip().splitlines()[-1], **facts)
    else:
        percent = (result.metrics or {}).get("percent", 0)
        write_status(job.out, name, "stopped early", f"not in the best third at {percent} % of its budget", **facts)


@dataclass(frozen=True)
class _Job:
    """Everything that a worker needs to run trials."""

    plan: SweepPlan
    out: Path
    trials: tuple[Trial, ...]
    resources: dict[str, float]
    parallel: int | None
    command: str
    directory: Path

    def build_trial(self, config: Mapping[str, Any]) -> Trial:
        """Return the trial for a configuration that Tune has chosen."""
        if "index" in config:
            return self.trials[config["index"]]
        settings = {dimension.field: dimension.round(config[dimension.field]) for dimension in self.plan.dimensions}
        return self.plan.build_trial(settings, config.get("__trial_index__", 0))


def _run(config: Mapping[str, Any], *, job: _Job) -> None:
    """Run one trial in a worker of Ray."""
    from ray import tune

    os.chdir(job.directory)  # paths may be relative, and workers of an existing Ray start in another folder
    trial, best = job.build_trial(config), math.inf
    sign = -1 if higher_is_better(job.plan.metric) else 1  # for Tune lower is better

    def report(percent: int, score: float) -> None:
        nonlocal best
        best = min(best, sign * score)
        tune.report({"percent": percent, "score": best})

    origin = {"preset": trial.settings.get("preset", next(iter(job.plan.bases))), "command": job.command}
    state = run_trial(job.out, trial, job.plan, threads=int(job.resources["cpu"]), origin=origin, report=report)
    if state.status != "done" or math.isinf(best):  # Tune would restart a trial that raises; asha ignores 0 %
        tune.report({"percent": 0, "score": math.inf})


def _optuna_search(plan: SweepPlan) -> Any:
    """Return an optuna search over the plan's dimensions, guided by the mean score of each setting over its seeds."""
    import optuna
    from ray.tune.search import Repeater
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space: dict[str, Any] = {}
    for dimension in plan.dimensions:
        bounds = dimension.low, dimension.high
        if not dimension.is_range:
            space[dimension.field] = optuna.distributions.CategoricalDistribution(dimension.values)
        elif dimension.integer:
            space[dimension.field] = optuna.distributions.IntDistribution(*map(int, bounds), log=dimension.log)
        else:
            space[dimension.field] = optuna.distributions.FloatDistribution(*bounds, log=dimension.log)
    search = OptunaSearch(space, metric="score", mode="min", seed=0)
    return Repeater(search, repeat=plan.seeds) if plan.seeds > 1 else search
