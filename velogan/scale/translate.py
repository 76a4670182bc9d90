"""`velogan translate --workers`: Ray Data distributes parts of the input to workers and restarts lost workers.

Only file names and counts are sent. Translations are files, so running the same command again translates the rest.
"""

from __future__ import annotations

import logging
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from velogan.engine.memory import peak_memory_mb
from velogan.engine.ray_session import ray_session, require_ray
from velogan.translate.files import translate_jobs
from velogan.translate.jobs import Job, escape_unprintable, find_picture_names, replace_suffix
from velogan.translate.model import Translator
from velogan.translate.options import TranslateOptions
from velogan.translate.summary import Summary

MAX_RETRIES = 2
"""Maximum number of retries of a part after its worker was lost."""

MAX_PART_IMAGES = 256
"""Maximum number of pictures in a part."""

LoadTranslator = Callable[[int], Translator]
"""Loads the generator in a worker, given the number of GPUs that the worker has: 0 or 1."""


@dataclass(frozen=True)
class PartitionedWork:
    """The pictures to translate: `names` below the folder `root`, divided into parts of `part_size`.

    Translations go to `output`. Paths are absolute, because workers run in other folders.
    """

    root: Path
    output: Path
    names: Sequence[str]
    part_size: int

    def parts(self) -> Iterator[Sequence[str]]:
        """Yield the names, part by part."""
        starts = range(0, len(self.names), self.part_size)
        return (self.names[start : start + self.part_size] for start in starts)


def translate_at_scale(
    load: LoadTranslator,
    input: Path,
    output: Path,
    *,
    workers: int,
    options: TranslateOptions,
    uses_gpus: bool = False,
    address: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[Summary, float]:
    """Translate the pictures of the folder `input` into the folder `output`, with the same names and subfolders.

    Existing translations are skipped unless `options.overwrite`.

    load: loads the generator in a worker; must be picklable
    workers: number of processes
    uses_gpus: whether workers use GPUs, in equal shares
    address: address of a running Ray cluster; None: start Ray on this machine
    progress: called with the number of finished pictures

    Returns the summary and the peak memory of the largest process in MB. Raises ValueError for errors that the user can
    fix, before anything is started, and OSError if workers cannot be started.
    """
    if workers < 1:
        raise ValueError(f"--workers {workers}: give at least 1")
    if address and address.startswith("ray://"):
        raise ValueError(f"--address {address}: start velogan on a host of that cluster, with --address auto")
    if input.is_file():
        raise ValueError(f"input {input} is a file, but --workers needs a folder: remove --workers")
    names = find_picture_names(input, output, suffix=options.suffix)
    part_size = min(MAX_PART_IMAGES, math.ceil(len(names) / (8 * workers)))
    work = PartitionedWork(input.absolute(), output.absolute(), names, part_size)
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    require_ray("scale", "ray.data", feature="--workers")
    total, peak = Summary(), 0.0
    remaining = dict(enumerate(work.parts()))
    with ray_session(address):
        from ray.exceptions import RayError

        started = time.perf_counter()
        try:
            for number, summary, memory in _translate_parts(work, load, options, workers, uses_gpus=uses_gpus):
                total, peak = total.merge(summary), max(peak, memory)
                del remaining[number]
                if progress is not None:
                    progress(total.translated + total.skipped + len(total.failed))
        except RayError as error:
            raise OSError(f"the workers cannot be started: {str(error).strip().splitlines()[-1]}") from error
        seconds = time.perf_counter() - started
    reason = "its worker was lost repeatedly; if memory ran out, use fewer workers"
    jobs = [_job(work, name, options) for part in remaining.values() for name in part]
    failed = tuple((job.name, reason) for job in jobs if options.overwrite or not job.is_done())
    total = total.merge(Summary(failed=failed))
    return replace(total, seconds=seconds), max(peak, peak_memory_mb())


def _translate_parts(
    work: PartitionedWork, load: LoadTranslator, options: TranslateOptions, workers: int, *, uses_gpus: bool
) -> Iterator[tuple[int, Summary, float]]:
    """Translate all parts; for each, yield its number, its summary and its worker's peak memory in MB."""
    import ray
    from ray.data import ActorPoolStrategy, DataContext, from_items

    cpus, gpus_per_worker = _divide_resources(
        [node["Resources"] for node in ray.nodes() if node["Alive"]], workers, uses_gpus=uses_gpus
    )
    rows = [{"part": number, "names": b"\0".join(map(os.fsencode, names))} for number, names in enumerate(work.parts())]
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    previous_context = DataContext.get_current()
    context = previous_context.copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.target_max_block_size = 1  # one block per part, so that parts do not wait for each other
    context.max_errored_blocks = -1  # parts that still fail after all retries are reported at the end
    DataContext._set_current(context)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the new name of max_task_retries in Ray
            data = from_items(rows, override_num_blocks=len(rows)).map_batches(
                _Worker,
                batch_size=1,
                batch_format="numpy",
                compute=ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=1),  # its queue is lost, too
                fn_constructor_args=(replace(work, names=()), load, options, gpus_per_worker, max(1, int(cpus))),
                num_cpus=cpus,
                num_gpus=gpus_per_worker or None,
                max_task_retries=MAX_RETRIES,
            )
        for row in data.iter_rows():
            yield ray.cloudpickle.loads(row["result"])  # pyright: ignore[reportAttributeAccessIssue]
    finally:
        DataContext._set_current(previous_context)


def _divide_resources(nodes: Sequence[dict[str, float]], workers: int, *, uses_gpus: bool) -> tuple[float, float]:
    """Return each worker's share of CPUs, at most the largest node's, and of GPUs, at most 1."""
    cores = [node.get("CPU", 0.0) for node in nodes]
    cpus_per_worker = sum(cores) / workers
    cpus = float(min(int(cpus_per_worker), int(max(cores))))
    if cpus_per_worker < 1:
        cpus = int(1000 * cpus_per_worker) / 1000
    share = sum(node.get("GPU", 0.0) for node in nodes) / workers if uses_gpus else 0.0
    return cpus, 1.0 if share >= 1 else int(1000 * share) / 1000


class _Worker:
    """A process that loads the generator once and translates parts."""

    def __init__(
        self, work: PartitionedWork, load: LoadTranslator, options: TranslateOptions, gpus: float, threads: int
    ) -> None:
        torch.set_num_threads(threads)
        self._work, self._options = work, options
        self._threads = threads
        self._model = load(1 if gpus else 0)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[bytes]]:
        import ray

        names = [os.fsdecode(name) for name in bytes(batch["names"][0]).split(b"\0")]
        try:
            done = translate_part(self._model, self._work, names, options=self._options, threads=self._threads + 1)
        except Exception as error:  # other parts continue, and the summary reports the error
            failed = tuple((escape_unprintable(name), f"{type(error).__name__}: {error}") for name in names)
            done = Summary(failed=failed)
        result = (int(batch["part"][0]), done, peak_memory_mb())
        return {"result": [ray.cloudpickle.dumps(result)]}  # pyright: ignore[reportAttributeAccessIssue]


def translate_part(
    model: Translator, work: PartitionedWork, names: Sequence[str], *, options: TranslateOptions, threads: int = 2
) -> Summary:
    """Translate the pictures `names` of `work`; `threads` is the number of threads that decode and save."""
    return translate_jobs(model, [_job(work, name, options) for name in names], options, threads=threads)


def _job(work: PartitionedWork, name: str, options: TranslateOptions) -> Job:
    target = work.output / replace_suffix(Path(name), options.suffix)
    return Job(name=escape_unprintable(name), source=work.root / name, target=target, is_exclusive=False)
