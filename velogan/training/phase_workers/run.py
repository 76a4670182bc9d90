"""Start a run whose phases are trained by one worker each: Ray actors, which restart if they are lost."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from velogan.config import Config
from velogan.data.sets.pair import TrainingData
from velogan.engine.duration import parse_span
from velogan.engine.processes import is_distributed
from velogan.engine.ray_session import ray_session, require_ray
from velogan.engine.trainer import Trainer
from velogan.methods.fit import phases_of
from velogan.objectives.base import Phase
from velogan.observe.progress import Display
from velogan.training.phase_workers.remote_step import ExecuteRequests, RemoteStep
from velogan.training.phase_workers.worker import PhaseWorker, TrainReport, TrainRequest
from velogan.training.run import train as train_run
from velogan.training.session import Result

FIELD = "train.exchange_every (--modules)"


def train(
    config: Config,
    run: Path,
    *,
    display: Display,
    origin: Mapping[str, Any],
    address: str | None = None,
    started_at: float | None = None,
) -> Result:
    """Train like `run.train`, with a Ray actor per phase, on the cluster at `address` or on one started here."""
    phases = distributed_phases(config)
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    require_ray("scale", "ray", feature=FIELD)
    context = partial(
        train_on_workers, phases=phases, start=partial(start_actors, address=address), print_line=display.print_line
    )
    return train_run(config, run, display=display, origin=origin, training_context=context, started_at=started_at)


def distributed_phases(config: Config) -> Sequence[Phase]:
    """Return the phases that workers will train. Raises ValueError if torchrun started velogan."""
    if is_distributed():
        raise ValueError(f"{FIELD} starts processes by Ray: start velogan without torchrun")
    return phases_of(config.method, config.spec)


@contextmanager
def train_on_workers(
    config: Config,
    trainer: Trainer,
    folder: Path,
    data: TrainingData,
    *,
    phases: Sequence[Phase],
    start: Callable[..., AbstractContextManager[ExecuteRequests]],
    print_line: Callable[[str], None],
) -> Iterator[None]:
    """Enter a context in which workers, started by `start`, compute the steps of `trainer`."""
    every = str(config.train.exchange_every)
    workers = {phase.name: (config, phase.name, phase.trains, (data.a.digest, data.b.digest)) for phase in phases}
    size = sum(weight.nbytes for net in trainer.nets.values() for weight in net.parameters())
    print_line(f"workers: {', '.join(workers)}; networks are exchanged every {every}")
    with start(workers, cuda=trainer.device.type == "cuda", store_bytes=20 * size) as execute:
        RemoteStep(trainer, phases, execute, every=parse_span(every), print_line=print_line)
        yield


@contextmanager
def start_actors(
    workers: Mapping[str, Sequence[Any]], *, address: str | None, cuda: bool, store_bytes: int
) -> Iterator[ExecuteRequests]:
    """Start workers as Ray actors; yield the function that executes requests on them.

    workers: arguments of `PhaseWorker`, by phase
    address: address of the Ray cluster; None: start Ray on this host
    cuda: whether each worker gets a GPU, or an equal share of one
    store_bytes: size of the object store, if Ray is started here

    Raises OSError if workers cannot be started, or are lost too often.
    """
    import ray
    from ray.exceptions import RayError

    def execute(requests: Mapping[str, TrainRequest]) -> dict[str, TrainReport]:
        return dict(
            zip(requests, ray.get([actors[name].execute.remote(request) for name, request in requests.items()]))
        )

    actors = dict[str, Any]()
    with ray_session(address, store_bytes=store_bytes):
        resources = ray.cluster_resources()
        if cuda and not resources.get("GPU"):
            raise OSError("the run uses a GPU, but no host of this Ray cluster has one: set --engine.device cpu")
        options: Any = {"num_cpus": 0, "scheduling_strategy": "SPREAD", "max_restarts": -1, "max_task_retries": 3}
        options["num_gpus"] = 1 / math.ceil(len(workers) / resources["GPU"]) if cuda else 0
        try:
            for name, arguments in workers.items():
                actor = ray.remote(PhaseWorker).options(name=name, **options)
                actors[name] = actor.remote(*arguments, threads=max(1, int(resources["CPU"]) // len(workers)))
            ray.get([actor.__ray_ready__.remote() for actor in actors.values()])
            yield execute
        except RayError as error:
            raise OSError(f"the workers of this run failed: {str(error).strip().splitlines()[-1]}") from error
