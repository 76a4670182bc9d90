"""`velogan translate --workers`: Ray Data hands parts of the input to workers, and starts again those that are lost.

Only names and counts are kept. Whatever is finished is a file, so the same command again does what is missing.
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

MOST_LOSSES = 2
"""How often a part is tried again whose worker was lost."""

MOST_NAMES = 256
"""The most images of a part."""

Load = Callable[[int], Translator]
"""Load the generator in a worker, which has so many GPUs."""


@dataclass(frozen=True)
class Input:
    """Images by their `names` below `root`, in parts of `each`; all paths are absolute, as workers are elsewhere."""

    root: Path
    output: Path
    names: Sequence[str]
    each: int

    def parts(self) -> Iterator[Sequence[str]]:
        """Yield the names, part by part."""
        return (self.names[start : start + self.each] for start in range(0, len(self.names), self.each))


def translate_at_scale(
    load: Load,
    input: Path,
    output: Path,
    *,
    workers: int,
    options: TranslateOptions,
    gpus: bool = False,
    address: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[Summary, float]:
    """Translate the images of the folder `input` into the folder `output` by `workers`; also return the peak memory.

    Images keep names and tree. Existing translations are skipped unless `options.overwrite`. `load` must be picklable.
    `address` is of a Ray that runs already. `progress` takes the count of images that are done. The memory, in MB, is
    that of the largest process. Raises ValueError for what the user can fix, before anything is started; OSError if
    workers cannot be started.
    """
    if workers < 1:
        raise ValueError(f"--workers {workers}: at least one")
    if address and address.startswith("ray://"):
        raise ValueError(f"--address {address}: start velogan on a host of that cluster, with --address auto")
    if input.is_file():
        raise ValueError(f"input {input} is one file: --workers is for a folder; leave it out here")
    names = find_picture_names(input, output, suffix=options.suffix)
    found = Input(input.absolute(), output.absolute(), names, min(MOST_NAMES, math.ceil(len(names) / (8 * workers))))
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    require_ray("scale", "ray.data", user="--workers")
    total, peak, left = Summary.empty(), 0.0, dict(enumerate(found.parts()))
    with ray_session(address):
        from ray.exceptions import RayError

        started = time.perf_counter()
        try:
            for number, done, memory in _results(found, load, options, workers, gpus=gpus):
                total, peak = total.merge(done), max(peak, memory)
                del left[number]
                if progress is not None:
                    progress(total.translated + total.skipped + len(total.failed))
        except RayError as error:
            raise OSError(f"the workers cannot be started: {str(error).strip().splitlines()[-1]}") from error
        seconds = time.perf_counter() - started
    reason = "its worker was lost again and again; if memory ran out, take fewer workers"
    jobs = [_job(found, name, options) for part in left.values() for name in part]
    lost = tuple((job.name, reason) for job in jobs if options.overwrite or not job.is_done())
    total = total.merge(replace(Summary.empty(), failed=lost))
    return replace(total, seconds=seconds), max(peak, peak_memory_mb())


def _results(
    found: Input, load: Load, options: TranslateOptions, workers: int, *, gpus: bool
) -> Iterator[tuple[int, Summary, float]]:
    """Yield the number of each part that is finished, its summary, and the peak memory of its worker in MB."""
    import ray
    from ray.data import ActorPoolStrategy, DataContext, from_items

    cpus, share = _share([node["Resources"] for node in ray.nodes() if node["Alive"]], workers, gpus=gpus)
    rows = [
        {"part": number, "names": b"\0".join(map(os.fsencode, names))} for number, names in enumerate(found.parts())
    ]
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
            data = from_items(rows, override_num_blocks=len(rows)).map_batches(
                _Worker,
                batch_size=1,
                batch_format="numpy",
                compute=ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=1),  # what waits is lost, too
                fn_constructor_args=(replace(found, names=()), load, options, share, max(1, int(cpus))),
                num_cpus=cpus,
                num_gpus=share or None,
                max_task_retries=MOST_LOSSES,
            )
        for row in data.iter_rows():
            yield ray.cloudpickle.loads(row["result"])  # pyright: ignore[reportAttributeAccessIssue]
    finally:
        DataContext._set_current(before)


def _share(nodes: Sequence[dict[str, float]], workers: int, *, gpus: bool) -> tuple[float, float]:
    """Return the CPUs and GPUs for each worker: equal parts, and no more than the largest node has."""
    cores = [node.get("CPU", 0.0) for node in nodes]
    each = sum(cores) / workers
    cpus = float(min(int(each), int(max(cores)))) if each >= 1 else int(1000 * each) / 1000
    share = sum(node.get("GPU", 0.0) for node in nodes) / workers if gpus else 0.0
    return cpus, 1.0 if share >= 1 else int(1000 * share) / 1000


class _Worker:
    """A process that has the generator and translates parts."""

    def __init__(self, found: Input, load: Load, options: TranslateOptions, gpus: float, threads: int) -> None:
        torch.set_num_threads(threads)
        self._found, self._options = found, options
        self._threads = threads
        self._model = load(1 if gpus else 0)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[bytes]]:
        import ray

        names = [os.fsdecode(name) for name in bytes(batch["names"][0]).split(b"\0")]
        try:
            done = translate_part(self._model, self._found, names, options=self._options, threads=self._threads + 1)
        except Exception as error:  # whatever it is, the other parts go on, and the report tells it
            failed = tuple((escape_unprintable(name), f"{type(error).__name__}: {error}") for name in names)
            done = replace(Summary.empty(), failed=failed)
        result = (int(batch["part"][0]), done, peak_memory_mb())
        return {"result": [ray.cloudpickle.dumps(result)]}  # pyright: ignore[reportAttributeAccessIssue]


def translate_part(
    model: Translator, found: Input, names: Sequence[str], *, options: TranslateOptions, threads: int = 2
) -> Summary:
    """Translate the images of `names`; `threads` decode and save."""
    return translate_jobs(model, [_job(found, name, options) for name in names], options, threads=threads)


def _job(found: Input, name: str, options: TranslateOptions) -> Job:
    target = found.output / replace_suffix(Path(name), options.suffix)
    return Job(name=escape_unprintable(name), source=found.root / name, target=target, exclusive=False)
