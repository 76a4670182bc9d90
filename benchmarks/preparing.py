"""Time and memory of preparing a folder of pictures for training: the first time, and again from the cache.

    python -m benchmarks.preparing PICTURES [SIDE]

PICTURES JPEG files (96x72, unless SIDE says otherwise: SIDE wide, three quarters as high) are made on the spot and
prepared as `velogan train` does it, for crops of 64 pixels out of 72x72. Prints seconds of listing, preparing and
opening again, the bytes of the cache, and the most memory of the process until then.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from velogan.data.config import DataConfig
from velogan.data.pictures.images import Picture, encode
from velogan.data.sets.cache import open_domain
from velogan.data.sets.sources import Folder, list_images
from velogan.engine.memory import peak_memory_mb


def main(pictures: int, side: int) -> None:
    with tempfile.TemporaryDirectory(prefix="preparing-") as root:
        make(Path(root) / "in", pictures, side)
        config = DataConfig.model_validate({"cache_dir": f"{root}/cache", "load_size": 72, "crop_size": 64})
        figures: dict[str, object] = {"pictures": pictures, "memory_before_mb": round(peak_memory_mb())}
        names: list[tuple[str, ...]] = []
        measure(figures, "listing", lambda: names.append(list_images(Path(root) / "in")))
        folder = Folder(Path(root) / "in", names[0])
        measure(figures, "preparing", lambda: open_domain(folder, config, test=False))
        measure(figures, "again", lambda: open_domain(folder, config, test=False))
        held = [path.stat().st_size for path in (Path(root) / "cache").rglob("*") if path.is_file()]
        figures |= {"cache_mb": round(sum(held) / 2**20), "load": round(os.getloadavg()[0], 1)}
        print(json.dumps(figures))


def make(folder: Path, pictures: int, side: int) -> None:
    """JPEG files in folders of 1,000, each of its own random colours."""
    random = np.random.default_rng(0)
    for index in range(pictures):
        small = random.integers(0, 256, (3, 4, 3), dtype=np.uint8)
        path = folder / f"{index // 1000:04d}/{index:07d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(".jpg", Picture(small.repeat(side // 4, 0).repeat(side // 4, 1))))


def measure(figures: dict[str, object], name: str, act: Callable[[], object]) -> None:
    """Adds seconds of wall clock and of processors, and the most memory so far."""
    wall, busy = time.perf_counter(), time.process_time()
    act()
    figures[name] = {
        "seconds": round(time.perf_counter() - wall, 2),
        "processor_seconds": round(time.process_time() - busy, 2),
        "memory_mb": round(peak_memory_mb()),
    }


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 96)
