"""What starting costs: processor seconds and imports of commands, of two checkouts by turns.

python -m benchmarks.startup BEFORE AFTER ROUNDS
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TRAIN = (
    "train --data apples2oranges --images 1 --image-size 32 --generator.channels 2 --generator.blocks 1 "
    "--discriminator.channels 2 --data.render-count 2 --data.render-test 1 --data.validation 0 --train.samples 1 "
    "--engine.threads 1 --engine.precision fp32 --out"
)
COMMANDS = ("--help", "translate --help", "train --help", TRAIN)


def cost(tree: Path, command: str, folder: Path) -> tuple[float, int]:
    """Processor seconds of one command, and how many modules it imports."""
    words = [*command.split(), *([str(folder / "run")] if command.endswith("--out") else [])]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "velogan", *words],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, done.stderr.count("import time:") - 1


def main() -> None:
    trees, rounds = [Path(word).resolve() for word in sys.argv[1:3]], int(sys.argv[3])
    for command in COMMANDS:
        found: dict[Path, list[tuple[float, int]]] = {tree: [] for tree in trees}
        for _ in range(rounds):
            for tree in trees:
                with tempfile.TemporaryDirectory() as folder:
                    found[tree].append(cost(tree, command, Path(folder)))
        for tree, costs in found.items():
            seconds = [round(one, 2) for one, _ in costs]
            print(f"{command[:40]:<42}{tree}: {statistics.median(seconds)} s of {seconds}, {costs[0][1]} modules")


if __name__ == "__main__":
    main()
