"""What a step of one run costs here: `python -m velogan.measure.probe REQUEST`, with a line of JSON at the end.

A process of its own, since memory is measured by process. The request is a file with `config` and `cores`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from velogan.config import Config, parse_config
from velogan.engine.memory import peak_memory_mb

TURNS = 5


@dataclass(frozen=True)
class Step:
    """`seconds` of training for an image of each domain; the most `memory_mb` of the process and of a CUDA device.

    Memory is in MB of 2^20 bytes, `gpu_memory_mb` 0 without a device.
    """

    seconds: float
    memory_mb: float
    gpu_memory_mb: float


def probe(config: Config, cores: Sequence[int]) -> Step:
    """Trains a few steps of `config` in another process on `cores`. ValueError with its last words where that fails."""
    with tempfile.TemporaryDirectory(prefix="velogan-probe-") as folder:
        request = Path(folder) / "request"
        request.write_text(json.dumps({"config": config.model_dump(mode="json"), "cores": list(cores)}))
        command = [sys.executable, "-m", "velogan.measure.probe", str(request)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ValueError(said[-1])
    return Step(**json.loads(done.stdout.splitlines()[-1]))


def main(argv: list[str]) -> None:
    """Measures what the file named in `argv` says."""
    from velogan.measure.bench.contestant import Contestant

    request = json.loads(Path(argv[0]).read_text())
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, request["cores"])
    config = parse_config(request["config"])
    one = Contestant("step", config, engine={}, say=lambda text: None)
    one.warm_up()
    seconds = median(one.timed(one.run) for _ in range(TURNS)) / config.images_per_update
    print(json.dumps({"seconds": seconds, "memory_mb": peak_memory_mb(), "gpu_memory_mb": one.device_peak_mb}))


if __name__ == "__main__":
    main(sys.argv[1:])
