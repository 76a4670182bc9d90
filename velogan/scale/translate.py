"""`velogan translate --workers`: Ray Data hands parts of the input to workers, and starts again those that are lost.

Nothing is kept but counts: the input is listed while it is translated, a few parts ahead. Whatever is finished is a
file, so the same command again does what is missing.
"""

from __future__ import annotations

import json
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from velogan.data.pictures.images import READ
from velogan.engine.memory import peak_memory_mb
from velogan.scale.connected import connected, require_ray
from velogan.scale.parts import Input, find_input
from velogan.scale.work import Done, Options
from velogan.translate.files import check_options, translate_jobs
from velogan.translate.jobs import Job, beside, printable, renamed
from velogan.translate.model import Translator

MOST_LOSSES = 2
"""How often a part is tried again whose worker was lost."""

Load = Callable[[int], Translator]
"""Loads the generator in a worker, which has so many GPUs."""


@dataclass
class Total(Done):
    """What all workers did, in how many seconds from Ray's start on; `peak_memory_mb` is the largest process's."""

    seconds: float = 0.0
    peak_memory_mb: float = 0.0


def translate_at_scale(
    load: Load,
    input: Path,
    output: Path,
    *,
    workers: int,
    options: Options,
    gpus: bool = False,
    address: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Total:
    """Translate the pictures of the folder `input` into the folder `output`, by `workers`.

    Pictures keep names and tree. What is there is skipped unless `options.overwrite`. `load` must be picklable.
    `address` is of a Ray that runs already. `progress` takes the count of pictures that are done. Raises `ValueError`
    for what the user can mend, before anything is started; `OSError` if workers cannot be started.
    """
    check_options(format=options.format, tile=options.tile)
    if workers < 1:
        raise ValueError(f"--workers {workers}: at least one")
    if address and address.startswith("ray://"):
        raise ValueError(f"--address {address}: start velogan on a host of that cluster, with --address auto")
    found = find_input(input, output)
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    require_ray("scale", "ray.data", user="--workers")
    total = Total()
    with connected(address):
        from ray.exceptions import RayError

        started = time.perf_counter()
        try:
            lost = _all(found, load, options, workers, total=total, gpus=gpus, progress=progress)
        except RayError as error:
            raise OSError(f"the workers cannot be started: {str(error).strip().splitlines()[-1]}") from error
        total.seconds = time.perf_counter() - started
    reason = "its worker was lost again and again; if memory ran out, take fewer workers"
    total.failed += [(printable(name), reason) for name in lost]
    total.failed.sort()
    total.peak_memory_mb = max(total.peak_memory_mb, peak_memory_mb())
    return total


def _all(
    found: Input,
    load: Load,
    options: Options,
    workers: int,
    *,
    total: Total,
    gpus: bool,
    progress: Callable[[int], None] | None,
) -> list[str]:
    """Adds what came of all parts to `total`; gives what is not there of the parts of which nothing came."""
    seen = set[int]()
    for result in _results(found, load, options, workers, gpus=gpus):
        seen.add(result["part"])
        total.add(Done(**result["done"]))
        total.peak_memory_mb = max(total.peak_memory_mb, result["peak_memory_mb"])
        if progress is not None:
            progress(total.translated + total.skipped + len(total.failed))
    lost = [name for number, part in enumerate(found.parts()) if number not in seen for name in part]
    return lost if options.overwrite else [name for name in lost if not os.path.lexists(_target(found, name, options))]


def _target(found: Input, name: str, options: Options) -> Path:
    return found.output / renamed(Path(name), options.suffix)


def _results(found: Input, load: Load, options: Options, workers: int, *, gpus: bool) -> Iterator[dict[str, Any]]:
    """What came of each part, as parts are finished."""
    import ray
    from ray.data import ActorPoolStrategy, DataContext, read_datasource

    cpus, share = _share([node["Resources"] for node in ray.nodes() if node["Alive"]], workers, gpus=gpus)
    options = replace(options, threads=max(1, int(cpus)) + 1)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    before = DataContext.get_current()
    context = before.copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.target_max_block_size = 1  # a block for each part, else they wait for one another
    context.max_errored_blocks = -1  # a part whose worker is lost again and again is told at the end
    DataContext._set_current(context)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that Ray will rename max_task_retries
            data = read_datasource(_listing(found), override_num_blocks=1, num_cpus=0).map_batches(
                _Worker,
                batch_size=1,
                batch_format="numpy",
                compute=ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=1),  # what waits is lost, too
                fn_constructor_args=(found, load, options, share, max(1, int(cpus))),
                num_cpus=cpus,
                num_gpus=share or None,
                max_task_retries=MOST_LOSSES,
            )
        for row in data.iter_rows():
            yield json.loads(row["result"])
    finally:
        DataContext._set_current(before)


def _share(nodes: Sequence[dict[str, float]], workers: int, *, gpus: bool) -> tuple[float, float]:
    """CPUs and GPUs for each worker: equal parts, and no more than the largest node has."""
    cores = [node.get("CPU", 0.0) for node in nodes]
    each = sum(cores) / workers
    cpus = float(min(int(each), int(max(cores)))) if each >= 1 else int(1000 * each) / 1000
    share = sum(node.get("GPU", 0.0) for node in nodes) / workers if gpus else 0.0
    return cpus, 1.0 if share >= 1 else int(1000 * share) / 1000


def _listing(found: Input) -> Any:
    """A source of Ray Data with a row for each part: its number, and names between zero bytes."""
    import pyarrow as pa
    from ray.data import Datasource, ReadTask
    from ray.data.block import BlockMetadata

    class Listing(Datasource):
        def estimate_inmemory_data_size(self) -> int | None:
            return None

        def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[ReadTask]:
            def read() -> Iterator[pa.Table]:
                for number, part in enumerate(found.parts()):
                    yield pa.table({"part": [number], "names": [b"\0".join(map(os.fsencode, part))]})

            return [ReadTask(read, BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None))]

    return Listing()


class _Worker:
    """A process that has the generator and translates parts."""

    def __init__(self, found: Input, load: Load, options: Options, gpus: float, threads: int) -> None:
        torch.set_num_threads(threads)
        self._found, self._options = found, options
        self._model = load(1 if gpus else 0)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        names = [os.fsdecode(name) for name in bytes(batch["names"][0]).split(b"\0")]
        try:
            done = translate_part(self._model, self._found, names, options=self._options)
        except Exception as error:  # whatever it is, the other parts go on, and the report tells it
            done = Done(failed=[(printable(name), f"{type(error).__name__}: {error}") for name in names])
        result = {
            "part": int(batch["part"][0]),
            "done": asdict(done),
            "peak_memory_mb": peak_memory_mb(),
        }
        return {"result": [json.dumps(result)]}


def translate_part(model: Translator, found: Input, names: Sequence[str], *, options: Options) -> Done:
    """Translate the pictures of `names`."""
    done, jobs = Done(), list[Job]()
    for name in names:
        target = _target(found, name, options)
        job = Job(name=printable(name), source=found.root / name, target=target, alone=False)
        if reason := _collides(job):
            done.failed.append((job.name, reason))
        else:
            jobs.append(job)
    done.add(translate_jobs(model, jobs, options.settings(model), threads=options.threads))
    return done


def _collides(job: Job) -> str:
    """Why a picture cannot take its new suffix: another beside it would, too."""
    if job.target.suffix == job.source.suffix:
        return ""
    other = beside(job.source, READ)
    return (
        f"{printable(other.name)} would become {job.target} too: rename one, or leave the format out" if other else ""
    )
