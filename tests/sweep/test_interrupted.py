"""Sweeps that are interrupted or killed leave no process behind; their runs have saved, and go on."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from velogan.store.checkpoint import list_checkpoints

FLAGS = shlex.split(
    "--images 200 --image-size 32 --generator.channels 2 --generator.blocks 1 "
    "--discriminator.channels 2 --data.render-count 22 --data.render-test 1 --data.validation 2 --train.samples 0 "
    "--train.logger none --train.checkpoint-every 10i --engine.precision fp32 --engine.kernels plain --json"
)
PATIENCE_S = 240.0


def pids_of(session: int) -> list[int]:
    """Living processes that have `VELOGAN_TEST=session` in their environment.

    Two agents of Ray's are left out: after a kill they take a minute to see that they are alone.
    """
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            marked = f"VELOGAN_TEST={session}\0".encode() in (folder / "environ").read_bytes()
            late = (folder / "cmdline").read_bytes().startswith((b"ray::DashboardAgent", b"ray::RuntimeEnvAgent"))
            if marked and not late and (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                pids.append(int(folder.name))
        except OSError:
            continue
    return pids


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="it looks for processes in /proc")
@pytest.mark.timeout(900)
def test_resumes_after_a_kill_and_leaves_no_process_after_an_interrupt(tmp_path: Path) -> None:
    flags = ("--vary", "optimizer.lr=0.001")
    before: dict[str, int] = {}
    for number, code in ((signal.SIGKILL, -9), (signal.SIGINT, 130)):
        process = _start(tmp_path, *flags)
        _until(lambda process=process, before=before: _saved(tmp_path) != before or process.poll() is not None)
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == code, errors
        _until(lambda: not pids_of(os.getpid()))
        after = _saved(tmp_path)
        for name, images in before.items():
            assert f"resuming {tmp_path / 'trials' / name} at {images} images" in (
                (tmp_path / "status" / f"{name}.log").read_text()
            )
            assert images < after[name] < 200
        before = after


def _start(out: Path, *more: str) -> subprocess.Popen[str]:
    script = "import signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    script += "from velogan.cli import main\nsys.exit(main(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", script, "sweep", "--data", "apples2oranges", "--out", str(out), *FLAGS, *more],
        env={**os.environ, "VELOGAN_TEST": str(os.getpid())},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _saved(out: Path) -> dict[str, int]:
    """Images of the newest checkpoint, by trial; those that have one."""
    checkpoints = {run.name: list_checkpoints(run) for run in (out / "trials").glob("*")}
    return {name: int(folders[-1].name) for name, folders in checkpoints.items() if folders}


def _until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)
