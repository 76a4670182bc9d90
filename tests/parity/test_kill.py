"""A run that is killed and started again ends where an unbroken one ends, bit for bit."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from velogan.store.checkpoint import list_checkpoints

KILLED = Path(__file__).with_name("killed.py")


def _flags(run: Path, *, images: int, checkpoint_every: int) -> list[str]:
    flags = f"""train --data apples2oranges --images {images} --image-size 32 --seed 3 --json --out {run}
        --train.checkpoint-every {checkpoint_every}i --train.keep 1 --train.samples 0 --train.logger none
        --data.render-count 4 --data.render-test 2 --method.pool-size 3 --discriminator.channels 4
        --generator.channels 4 --generator.blocks 1 --generator.dropout true
        --engine.threads 1 --engine.precision fp32 --engine.kernels plain"""
    return flags.split()


def _in_call(start: Callable[..., Any], flags: list[str], *, every: int = 1) -> tuple[dict, int]:
    """Kills inside the 1st, 1 + `every`-th ... file-system call until it comes through; its result, and the kills."""
    for kills in itertools.count():
        code = f"import runpy\nrunpy.run_path({str(KILLED)!r})['die_in_call']({every * kills + 1})"
        process = start(flags, code=code)
        exit_code, log = process.wait()
        if exit_code == 0:
            return json.loads((process.folder / "out").read_text().splitlines()[-1]), kills
        assert exit_code == -signal.SIGKILL, log
    raise AssertionError


def _at_random(start: Callable[..., Any], flags: list[str]) -> tuple[dict, int]:
    """Kills at ten random moments, then lets it come through."""
    moments = random.Random(5)
    for _ in range(10):
        process = start(flags)
        time.sleep(moments.uniform(0.05, 0.8))
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait()[0] == -signal.SIGKILL
    return start(flags).result(), 10


@pytest.mark.parametrize(
    ("kill", "images", "min_kills"),
    [
        (partial(_in_call, every=5), 4, 4),
        pytest.param(_in_call, 4, 21, marks=pytest.mark.soak),
        pytest.param(_at_random, 80, 3, marks=pytest.mark.soak),
    ],
    ids=["in calls", "in every call", "at random"],
)
def test_a_run_that_is_killed_anywhere_and_resumed_ends_bit_identical(
    kill: Any, images: int, min_kills: int, start, tmp_path
):
    flags = {name: _flags(tmp_path / name, images=images, checkpoint_every=2) for name in ("unbroken", "killed")}
    expected = start(flags["unbroken"]).result()
    result, kills = kill(start, flags["killed"])
    assert kills >= min_kills  # else it came through before it met its checkpoints
    assert result["images_seen"] == expected["images_seen"] == images
    assert result["weights_sha256"] == expected["weights_sha256"]
    names = {path.name for path in (tmp_path / "killed" / "checkpoints").iterdir()}
    assert not [name for name in names if name.startswith(".writing")]


def _begun(start: Callable[..., Any], flags: list[str], run: Path) -> Any:
    """The command, once it has written a checkpoint more than there was."""
    before = list_checkpoints(run)[-1:]
    process = start(flags)
    while list_checkpoints(run)[-1:] == before:
        time.sleep(0.005)
        os.kill(process.pid, 0)
    return process


def test_signals_save_and_the_resumed_run_ends_bit_identical(start, tmp_path: Path):
    images, run = 60, tmp_path / "stopped"
    expected = start(_flags(tmp_path / "unbroken", images=images, checkpoint_every=10)).result()
    flags = _flags(run, images=images, checkpoint_every=10)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        process = _begun(start, flags, run)
        os.kill(process.pid, number)
        time.sleep(0.2)
        os.kill(process.pid, number)  # an impatient user
        stopped = process.result()
        assert stopped["finished"] is False
        assert stopped["images_seen"] == int(Path(stopped["checkpoint"]).name) < images  # saved where it stopped
    process = _begun(start, flags, run)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait()[0] == -signal.SIGKILL
    result = start(flags).result()
    assert result["finished"] is True
    assert result["weights_sha256"] == expected["weights_sha256"]
