"""Images a second of `velogan translate --workers` with 1 and 2 workers by turns, and the memory of all its processes.

    python -m benchmarks.million PICTURES [ROUNDS] [SIDE] [CHANNELS]

PICTURES small pictures (32x32 PNG, unless SIDE says otherwise) are made on the spot, in folders of 1,000, and
translated by a random generator (ResNet, 3 blocks, 16 channels unless CHANNELS says otherwise, float32); with 0 rounds
by 2 workers once. Each worker stays on a core of its own and computes with one thread; Ray runs already. Rates are of
the last four fifths of the pictures: starting a worker takes seconds, which a million pictures would hide. Memory is
what the processes do not share, sampled twice a second.
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
        make(root / "in", pictures, side)
        rates: dict[int, list[float]] = {1: [], 2: []}
        with ray_session(None), watched() as peak:
            for workers in [1, 2] * rounds or [2]:
                rates[workers].append(rate(root, workers, channels))
        figures = {
            "pictures": pictures,
            "images_per_s": {workers: [round(one, 1) for one in found] for workers, found in rates.items()},
            "ratio": [round(two / one, 2) for one, two in zip(rates[1], rates[2])],
            "memory_mb": {name: round(most) for name, most in peak.items()},
            "load": os.getloadavg()[0],
        }
        print(json.dumps(figures))
    finally:
        shutil.rmtree(root, ignore_errors=True)


def make(folder: Path, pictures: int, side: int) -> None:
    """Pictures of smooth random colours."""
    random = np.random.default_rng(0)
    for index in range(pictures):
        small = random.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        path = folder / f"{index // 1000:04d}/{index:07d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_picture(path, Picture(small.repeat(side // 4, 0).repeat(side // 4, 1)))


def rate(root: Path, workers: int, channels: int) -> float:
    """Images a second; the translations are removed afterwards."""
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
    ended, done = times[-1]
    began, before = next((when, so_far) for when, so_far in times if so_far >= done / 5)
    print(f"{workers}: {done} in {total.seconds:.1f} s, start included", file=sys.stderr)
    return (done - before) / (ended - began)


def loader(root: Path, channels: int) -> LoadTranslator:
    """Puts each worker on a core of its own, with one thread."""

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
def watched() -> Iterator[dict[str, float]]:
    """The most MB that this process, and all processes with its descendants, had to themselves."""
    peak, over = {"driver": 0.0, "all": 0.0}, Event()

    def watch() -> None:
        while not over.wait(0.5):
            own = private(os.getpid())
            peak["driver"] = max(peak["driver"], own)
            peak["all"] = max(peak["all"], own + sum(map(private, descendants(os.getpid()))))

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def private(pid: int) -> float:
    """MB of a process's own memory; 0 for one that has ended."""
    with suppress(OSError):
        resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[1:3])
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return 0.0


def descendants(pid: int) -> list[int]:
    """Processes that this one started, and those that they started."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text().split()):
                found += [child, *descendants(child)]
    return found


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
