"""What a sweep will take, before it starts: time and memory of each run here, and how many run side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from velogan.config import Config
from velogan.engine.duration import parse_span
from velogan.files import counted, duration
from velogan.sweep.cores import available
from velogan.sweep.plan import SweepPlan, Trial
from velogan.sweep.scheduling import Resources, shared

MOST_PROBES = 8
"""So many kinds of runs are measured, a few seconds each; the cost of others is left open."""


Fit = Callable[[Config], Config]
"""The configuration with the channels that its pictures have. ValueError where there are none."""

Probe = Callable[[Config, Sequence[int]], Any]
"""Measures what a step of a configuration costs on some cores, as `measure.probe` does. ValueError where it cannot."""


@dataclass(frozen=True)
class Cost:
    """Of one run: training `seconds` and `images` of each domain, and memory in MB; None where it was not measured."""

    seconds: float | None
    images: int | None
    memory_mb: float | None
    gpu_memory_mb: float | None


def cost(
    plan: SweepPlan,
    trials: Sequence[Trial],
    *,
    parallel: int | None,
    fit: Fit,
    probe: Probe,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """`trials`, each with what `Cost` has; `count`; `parallel`, `cores`, `gpus` of each; `seconds` of training in all.

    The latter are on this machine, and None where a run's are not known.

    Runs that differ only in the seed and in fractions above 0, such as rates and weights, are taken to cost the same: a
    few steps of one of them are trained on random pictures, of the channels that `fit` finds. `say` is told what cannot
    be measured.
    """
    count = len(trials) or (plan.trials or 0) * plan.seeds
    device = next(iter(plan.bases.values())).engine.device
    gpus = float(torch.cuda.device_count()) if device == "auto" or device.startswith("cuda") else 0.0
    cores = available()
    each = shared(len(cores), gpus, parallel=parallel, largest=len(cores), trials=max(count, 1))
    steps = _steps(trials, cores[: each.cores], fit, probe, say)
    costs = [_cost(plan.budget, steps.get(_kind(trial))) for trial in trials]
    listed = [
        {"name": trial.name, "settings": dict(trial.settings), "seed": trial.seed, **vars(one)}
        for trial, one in zip(trials, costs)
    ]
    seconds = _whole(costs or [_cost(plan.budget, None)] * count, each)
    return {"trials": listed, "count": count, "budget": plan.budget, **vars(each), "seconds": seconds}


def described(found: dict[str, Any]) -> str:
    """The last line for people: how many runs, how many at a time, how long in all."""
    time = "" if found["seconds"] is None else f": {duration(found['seconds'])} of training in all"
    cores, gpus = found["cores"], found["gpus"]
    what = f"{gpus:g} GPU and {counted(cores, 'core')}" if gpus else counted(cores, "core")
    return (
        f"{counted(found['count'], 'run')} of {found['budget']} each, {found['parallel']} at a time with {what} "
        f"each{time}; start and scoring come on top"
    )


def _kind(trial: Trial) -> str:
    """What decides over the cost of a step, as text: all settings, but of fractions only which are 0.

    A weight of 0 leaves a pass through a network out.
    """
    return repr({name: value != 0 if isinstance(value, float) else value for name, value in trial.settings.items()})


def _steps(
    trials: Sequence[Trial], cores: Sequence[int], fit: Fit, probe: Probe, say: Callable[[str], None]
) -> dict[str, Any]:
    kinds: dict[str, Trial] = {}
    for trial in trials:
        kinds.setdefault(_kind(trial), trial)
    found: dict[str, Any] = {}
    for kind, trial in list(kinds.items())[:MOST_PROBES]:
        engine = {"threads": trial.config.engine.threads or len(cores)}
        try:
            found[kind] = probe(fit(trial.config).change(engine=engine), cores)
        except ValueError as error:
            say(f"the cost of {trial.name} cannot be measured: {error}")
    if len(kinds) > MOST_PROBES:
        say(f"{MOST_PROBES} of {len(kinds)} kinds of runs were measured")
    return found


def _cost(budget: str, step: Any | None) -> Cost:
    span = parse_span(budget)
    seconds = 60 * span.amount if span.unit == "minutes" else None
    images = int(span.amount) if span.unit == "images" else None
    if step is None:
        return Cost(seconds, images, None, None)
    if seconds is None:
        seconds = span.amount * step.seconds
    else:
        images = int(seconds / step.seconds)
    return Cost(seconds, images, step.memory_mb, step.gpu_memory_mb)


def _whole(costs: Sequence[Cost], each: Resources) -> float | None:
    """Seconds until the last run ends, each starting where one before it has ended."""
    ends = [0.0] * each.parallel
    for one in costs:
        if one.seconds is None:
            return None
        ends[0] += one.seconds
        ends.sort()
    return ends[-1]
