"""Trainings of a study, several at a time: each is a `velogan train` of its own, and goes on where it was stopped."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from velogan.config import Config, to_yaml

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, eq=False)
class Training:
    """The training `config` of the recipe `name` on the set `of`, in the folder `runs`."""

    of: str
    name: str
    seed: int
    config: Config
    runs: Path

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.runs / f"preset={self.name},seed={self.seed}"


def train_all(
    trainings: Sequence[Training], *, parallel: int, print_line: Callable[[str], None]
) -> dict[Training, str]:
    """Train, `parallel` at a time, and return the reason of each that failed; else it is empty."""
    cores = max(1, len(os.sched_getaffinity(0)) // parallel)

    def train(training: Training) -> str:
        training.runs.mkdir(parents=True, exist_ok=True)
        threads = training.config.engine.threads or cores
        file, log = (
            training.run.with_name(f"{training.run.name}.yaml"),
            training.run.with_name(f"{training.run.name}.log"),
        )
        file.write_text(to_yaml(training.config.change(engine={"threads": threads})), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "velogan",
            "train",
            "--config",
            str(file),
            "--out",
            str(training.run),
            "--json",
        ]
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        with open(log, "w", encoding="utf-8") as stream:
            code = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=stream, env=env, check=False).returncode
        lines = log.read_text(encoding="utf-8").strip().splitlines()
        reason = "" if code == 0 else (lines[-1] if lines else f"exit code {code}")
        print_line(f"{training.of}, {training.name}, seed {training.seed}: {reason or 'done'}")
        return reason

    with ThreadPoolExecutor(parallel) as pool:
        return dict(zip(trainings, pool.map(train, trainings)))
