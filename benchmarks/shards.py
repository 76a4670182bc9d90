"""Batches a second of the loader alone, from a folder's prepared pictures and from shards, by turns.

    python benchmarks/shards.py PICTURES [ROUNDS] [SIDE]

PICTURES JPEG files (256x256 unless SIDE says otherwise) of smooth noise are made on the spot, packed into shards of 32
MiB and prepared for crops of 256 pixels out of 286x286. An image is a picture of each domain, and both domains are the
same pictures. `http` are the same shards from a server in a process of its own, on this machine. Each turn takes 400
images, by two threads from shards. Prints images a second of each by turns (wall, and by this process's processor
time), seconds of packing, of looking through the shards, of preparing the folder and of opening all again, and the
bytes of the caches.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from velogan.data.config import DataConfig
from velogan.data.pictures.images import Picture, encode
from velogan.data.sets.loader import PairLoader
from velogan.data.sets.pack import pack
from velogan.data.sets.pair import open_data

TURN = 400


def main(pictures: int, rounds: int = 5, side: int = 256) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="shards-") as made:
        root = Path(made)
        figures: dict[str, Any] = {"pictures": pictures, "side": side}
        bytes_of = make(root / "in", pictures, side)
        figures["kib_each"] = round(bytes_of / pictures / 2**10, 1)
        timed(figures, "packing", lambda: pack(root / "in", root / "shards", most_bytes=2**25))
        loaders = {}
        shards = sorted(path.name for path in (root / "shards").iterdir())
        server = subprocess.Popen(
            [sys.executable, __file__, "--serve", root / "shards"], stdout=subprocess.PIPE, text=True
        )
        atexit.register(server.kill)
        assert server.stdout
        address = server.stdout.readline().strip()
        places = {
            "folder": f"{root}/in",
            "shards": f"{root}/shards",
            "http": "::".join(f"{address}/{x}" for x in shards),
        }
        for name, place in places.items():
            config = DataConfig.model_validate(
                {"path": [place] * 2, "cache_dir": f"{root}/cache-{name}", "shuffle": pictures // 4}
                | {"workers": 2, "validation": 0}
            )
            data = timed(figures, f"first look, {name}", lambda c=config: opened(c))
            timed(figures, f"again, {name}", lambda c=config: opened(c))
            held = [path.stat().st_size for path in Path(f"{root}/cache-{name}").rglob("*") if path.is_file()]
            figures[f"cache_mb, {name}"] = round(sum(held) / 2**20, 1)
            loaders[name] = PairLoader(data.a, data.b, config, seed=0, device="cpu")
        rates: dict[str, Any] = {name: [] for name in loaders}
        for number in range(rounds):
            for name, loader in loaders.items():
                rates[name].append(rate(loader, number * TURN))
        print(json.dumps({**figures, "images_per_s": rates, "load": round(os.getloadavg()[0], 1)}))


class Ranges(SimpleHTTPRequestHandler):
    """Gives parts of files."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        if "Range" not in self.headers:
            return super().do_GET()
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        with open(self.translate_path(self.path), "rb") as file:
            file.seek(first)
            part = file.read(last + 1 - first)
            self.send_response(206)
            self.send_header(
                "Content-Range", f"bytes {first}-{first + len(part) - 1}/{os.fstat(file.fileno()).st_size}"
            )
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)
        return None

    def log_message(self, format: str, *args: object) -> None:
        pass


def serve(folder: str) -> None:
    """Until it is killed; prints its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Ranges, directory=folder)) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


def make(folder: Path, pictures: int, side: int) -> int:
    """Write JPEG files in folders of 1,000; give their bytes."""
    random, total = np.random.default_rng(0), 0
    for index in range(pictures):
        small = random.integers(0, 256, (side // 8, side // 8, 3), dtype=np.uint8)
        path = folder / f"{index // 1000:04d}/{index:07d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.asarray(Image.fromarray(small).resize((side, side), Image.Resampling.BICUBIC))
        total += path.write_bytes(encode(".jpg", Picture(pixels)))
    return total


def opened(config: DataConfig) -> Any:
    """Both domains."""
    return open_data(config, task=lambda name: lambda done, all: None, say=lambda line: None)


def timed(figures: dict[str, Any], name: str, act: Callable[[], Any]) -> Any:
    """Adds seconds of wall clock and of processors."""
    wall, busy = time.perf_counter(), time.process_time()
    result = act()
    figures[name] = [round(time.perf_counter() - wall, 2), round(time.process_time() - busy, 2)]
    return result


def rate(loader: PairLoader, position: int) -> tuple[float, float]:
    """Images a second of the wall clock, and of processor time, from `position` on."""
    wall, busy = time.perf_counter(), time.process_time()
    batches = loader.batches(position)
    for _ in range(TURN):
        loader.finish(next(batches))
    batches.close()
    return round(TURN / (time.perf_counter() - wall), 1), round(TURN / (time.process_time() - busy), 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    else:
        main(*map(int, sys.argv[1:]))
