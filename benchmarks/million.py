"""Images per second of `velogan translate --workers` with 1 and 2 workers, alternating, and the memory of processes.

    python -m benchmarks.million PICTURES [ROUNDS] [SIDE] [CHANNELS]

PICTURES small pictures (32x32 PNG, default of SIDE) are created in folders of 1,000 and
translated by a random generator (ResNet, 3 blocks, CHANNELS channels, default 16, float32); with 0 rounds
by 2 workers once. Each worker stays on a core of its own and computes with one thread; Ray runs already. Rates are of
the last four fifths of the pictures, without the start of workers. Memory is not shared memory, sampled twice per
second.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import numpy as np
import torch

from velogan.data.pictures.images import Picture, save_picture
from velogan.engine.ray_session import ray_session
from velogan.networks.generators import GeneratorConfig, build_generator
from velogan.scale.translate import LoadTranslator, translate_at_scale
from velogan.translate.model import Translator
from velogan.translate.options import TranslateOptions


def main(pictures: int, rounds: int = 2, side: int = 32, channels: int = 16) -> None:
    root = Path(tempfile.mkdtemp(prefix="million-"))
    try:
        create_pictures(root / "in", pictures, side)
        rates: dict[int, list[float]] = {1: [], 2: []}
        with ray_session(None), track_memory() as peak:
            for workers in [1, 2] * rounds or [2]:
                rates[workers].append(measure_rate(root, workers, channels))
        result = {
            "pictures": pictures,
            "images_per_s": {workers: [round(value, 1) for value in values] for workers, values in rates.items()},
            "ratio": [round(double / single, 2) for single, double in zip(rates[1], rates[2])],
            "memory_mb": {name: round(most) for name, most in peak.items()},
            "load": os.getloadavg()[0],
        }
        print(json.dumps(result))
    finally:
        shutil.rmtree(root, ignore_errors=True)


def create_pictures(folder: Path, pictures: int, side: int) -> None:
    """Write pictures of smooth random colours."""
    random = np.random.default_rng(0)
    for index in range(pictures):
        small = random.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        path = folder / f"{index // 1000:04d}/{index:07d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_picture(path, Picture(small.repeat(side // 4, 0).repeat(side // 4, 1)))


def measure_rate(root: Path, workers: int, channels: int) -> float:
    """Return the images per second; remove the translations."""
    times: list[tuple[float, int]] = []
    total, _ = translate_at_scale(
        loader(root, channels),
        root / "in",
        root / "out",
        workers=workers,
        options=TranslateOptions(),
        progress=lambda done: times.append((time.perf_counter(), done)),
    )
    if total.failed:
        raise SystemExit(f"{total.failed[0]}")
    shutil.rmtree(root / "out")
    shutil.rmtree(root / "cores")
    ended_at, done = times[-1]
    started_at, before = next((time, count) for time, count in times if count >= done / 5)
    print(f"{workers}: {done} in {total.seconds:.1f} s, start included", file=sys.stderr)
    return (done - before) / (ended_at - started_at)


def loader(root: Path, channels: int) -> LoadTranslator:
    """Return a loader that pins each worker to a core of its own, with one thread."""

    def load(gpus: int) -> Translator:
        (root / "cores").mkdir(exist_ok=True)
        for core in sorted(os.sched_getaffinity(0)):
            with suppress(FileExistsError):
                (root / f"cores/{core}").touch(exist_ok=False)
                os.sched_setaffinity(0, {core})
                break
        torch.set_num_threads(1)
        torch.manual_seed(0)
        net = build_generator(GeneratorConfig.model_validate({"blocks": 3, "channels": channels})).eval()
        return Translator(net.requires_grad_(False), multiple=4, device=torch.device("cpu"))

    return load


@contextmanager
def track_memory() -> Iterator[dict[str, float]]:
    """Yield the peak private memory, in MB, of this process and of all with its descendants."""
    peak, stopped = {"driver": 0.0, "all": 0.0}, Event()

    def watch() -> None:
        while not stopped.wait(0.5):
            own = private_memory(os.getpid())
            peak["driver"] = max(peak["driver"], own)
            peak["all"] = max(peak["all"], own + sum(map(private_memory, descendants(os.getpid()))))

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stopped.set()
        thread.join()


def private_memory(pid: int) -> float:
    """Return the private memory of a process in MB; 0 if it has ended."""
    with suppress(OSError):
        resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[1:3])
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return 0.0


def descendants(pid: int) -> list[int]:
    """Return the descendants of a process."""
    processes: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text().split()):
                processes += [child, *descendants(child)]
    return processes


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
