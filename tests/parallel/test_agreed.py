"""What happens to one rank happens to all: broken numbers, signals, lost peers, another number of ranks."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from velogan.observe.log import read_stats
from velogan.store.checkpoint import digest, list_checkpoints

POOLED = ("--method.pool-size", "3", "--method.augment", "shift", "--method.augment-probability", "0.7")

BREAK = """
import math, os
from dataclasses import replace
from velogan.methods.cyclegan import CycleGANObjective as Objective
plain, calls = Objective.discriminator_loss, []

def broken(self, *given):
    out = plain(self, *given)
    calls.append(1)
    return replace(out, loss=out.loss * math.nan) if os.environ["RANK"] == "1" and len(calls) == 3 else out

Objective.discriminator_loss = broken
"""

SLOW = """
import os, time
from velogan.engine.trainer import Trainer
step = Trainer._train_step

def slow_step(self, batches):
    time.sleep({seconds} if os.environ["RANK"] in "{ranks}" else 0)
    step(self, batches)

Trainer._train_step = slow_step
"""


def _until(run: Path, images: int) -> None:
    """Waits until so many images are in the log."""
    for _ in range(6000):
        rows = read_stats(run)
        if rows and rows[-1]["images"] >= images:
            return
        time.sleep(0.02)
    raise AssertionError(f"{run} does not come to {images} images")


def test_reports_nan_of_one_rank_once_and_stops_both(start, flags, tmp_path: Path):
    codes, logs = start(flags(tmp_path / "run"), code=BREAK).wait()
    assert codes == [1, 1]
    lines = [line for text in logs for line in text.splitlines() if "not a finite number" in line]
    assert len(lines) == 1
    assert re.match(r"velogan: not a finite number in step .*, phase discriminator: ", lines[0])


@pytest.fixture(scope="module")
def unbroken(start, flags, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of a run of two ranks, 24 images, with pools, that nothing happened to."""
    run = tmp_path_factory.mktemp("unbroken") / "run"
    assert start(flags(run, *POOLED, images=24, every=99)).wait()[0] == [0, 0]
    return digest(list_checkpoints(run)[-1])


def test_a_signal_to_one_rank_saves_once_and_ends_all(start, flags, unbroken: str, tmp_path: Path):
    run, more = tmp_path / "run", POOLED
    job = start(flags(run, *more, images=24, every=99), code=SLOW.format(seconds=0.05, ranks="01"))
    _until(run, 4)
    job.send(1, signal.SIGTERM)
    codes, logs = job.wait()
    assert codes == [0, 0], logs
    result = json.loads(logs[0].splitlines()[-1])
    assert not result["finished"]
    assert [int(folder.name) for folder in list_checkpoints(run)] == [result["images_seen"]]
    assert logs[1] == ""

    assert start(flags(run, *more, images=24, every=99)).wait()[0] == [0, 0]
    assert digest(list_checkpoints(run)[-1]) == unbroken

    codes, logs = start(flags(run, *more, images=26, every=99), ranks=1).wait()  # another number of ranks
    assert codes == [0], logs
    assert "the number of processes changes from 2 to 1: an update has 1 image (before: 2)" in logs[0]
    assert "image pools of the other ranks are dropped" in logs[0]
    codes, logs = start(flags(run, *more, images=28, every=99)).wait()
    assert codes == [0, 0], logs
    assert "the number of processes changes from 1 to 2" in logs[0]
    assert "new ranks copy image pools" in logs[0]
    assert read_stats(run)[-1]["images"] == 28


def test_reports_a_killed_rank(start, flags, tmp_path: Path):
    run = tmp_path / "run"
    job = start(flags(run, images=999, every=4), code=SLOW.format(seconds=0.5, ranks="1"))
    _until(run, 12)
    job.send(1, signal.SIGKILL)
    codes, logs = job.wait()
    assert codes == [1, -signal.SIGKILL]
    lost = [line for line in logs[0].splitlines() if line.startswith("velogan: ")]
    assert len(lost) == 1
    assert re.match(rf"velogan: lost rank 1 of 2 \(.*, process {job.pids[1]}\) \(.*the same command resumes", lost[0])
    assert list_checkpoints(run)


def test_reports_a_rank_that_hangs(start, flags, tmp_path: Path):
    run = tmp_path / "run"
    job = start(flags(run, "--train.process-timeout", "4", images=9999))
    _until(run, 2)
    job.send(1, signal.SIGSTOP)
    _, logs = job.ask({"wait": job.pids[0]}), job.said_in[0].read_text()
    job.send(1, signal.SIGKILL)
    job.ask({"wait": job.pids[1]})
    assert re.search(
        r"velogan: rank 0 of 2 \(.*no heartbeat from rank 1 of 2 \(.*\) for [45] s; the same command", logs
    )


def test_a_validation_longer_than_the_timeout_ends_no_rank(start, flags, tmp_path: Path):
    code = """
import time
from velogan.training.session import Session
save = Session._save

def slow_save(self, images):
    time.sleep(5)
    save(self, images)

Session._save = slow_save
"""
    codes, logs = start(flags(tmp_path / "run", "--train.process-timeout", "2"), code=code).wait()
    assert codes == [0, 0], logs


def test_reports_a_full_disk_of_one_rank(start, flags, disk, tmp_path: Path):
    code = f"""
import os
if os.environ["RANK"] == "1":
    os.environ.update(LOCAL_RANK="0", VELOGAN_CACHE="{disk.path}/cache")  # as on a host of its own
"""
    disk.fill()
    codes, logs = start(flags(tmp_path / "run"), code=code).wait()
    assert codes == [1, 1]
    lines = [line for text in logs for line in text.splitlines() if line.startswith("velogan: ")]
    assert len(lines) == 1
    assert re.match(r"velogan: rank 1 of 2 \(.*\): .*No space left on device", lines[0])


@pytest.mark.parametrize("wrong", [("--epochs", "3"), ("--engine.mode", "graph")])  # before they meet, and after
def test_reports_a_wrong_flag_once(wrong: tuple[str, ...], start, flags, tmp_path: Path):
    codes, logs = start(flags(tmp_path / "run", *wrong)).wait()
    assert codes == [2, 2]
    assert len([line for text in logs for line in text.splitlines() if line.startswith("velogan: ")]) == 1


@pytest.mark.soak
def test_torchrun_restarts_after_a_kill_and_ends_as_if_unbroken(flags, unbroken: str, tmp_path: Path):
    run = tmp_path / "run"
    code = SLOW.format(seconds=0.1, ranks="01") + "\nimport sys; from velogan.cli import main; sys.exit(main())"
    script = tmp_path / "slow.py"
    script.write_text(code)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "2"]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    job = subprocess.Popen(
        [*torchrun, str(script), *flags(run, *POOLED, images=24, every=4)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _until(run, random.randrange(4, 18))
    os.kill(_rank(job.pid, 1), signal.SIGKILL)
    out, logs = job.communicate()
    assert job.returncode == 0, logs
    result = json.loads(out)
    assert (result["images_seen"], result["world_size"], result["finished"]) == (24, 2, True)
    assert digest(Path(result["checkpoint"])) == unbroken


def _rank(parent: int, rank: int) -> int:
    """The process of this rank among the children of `parent`."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if f"RANK={rank}" in Path(f"/proc/{child}/environ").read_text().split("\0"):
            return int(child)
    pytest.fail(f"{parent} has no child of rank {rank}")
