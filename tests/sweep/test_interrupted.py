"""A sweep that is killed leaves no process behind, and its runs have saved."""

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
    "--vary optimizer.lr=0.001 --images 200 --image-size 32 --generator.channels 2 --generator.blocks 1 "
    "--discriminator.channels 2 --data.render-count 22 --data.render-test 1 --data.validation 2 --train.samples 0 "
    "--train.no-tensorboard --train.checkpoint-every 10i --engine.precision fp32 --json"
)
PATIENCE_S = 120.0


def pids_of(session: int) -> list[int]:
    """Living processes that have `VELOGAN_TEST=session` in their environment.

    Two agents of Ray's are left out: after a kill they take a minute to see that they are alone.
    """
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            marked = f"VELOGAN_TEST={session}\0".encode() in (folder / "environ").read_bytes()
            late = (folder / "cmdline").read_bytes().startswith((b"ray::DashboardAgent", b"ray::RuntimeEnvAgent"))
            if marked and not late and (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="it looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL])
def test_nothing_is_left_behind_but_what_was_saved(number: signal.Signals, tmp_path: Path) -> None:
    argv = ["sweep", "--data", "apples2oranges", "--out", str(tmp_path / "out"), *FLAGS]
    script = "import signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    script += "from velogan.cli import main\nsys.exit(main(sys.argv[1:]))"
    run = tmp_path / "out" / "trials" / "lr=0.001,seed=0"
    process = subprocess.Popen(
        [sys.executable, "-c", script, *argv],
        env={**os.environ, "VELOGAN_TEST": str(os.getpid())},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    _until(lambda: bool(list_checkpoints(run)) or process.poll() is not None)
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -9, said
    _until(lambda: not pids_of(os.getpid()))
    saved = int(list_checkpoints(run)[-1].name)
    assert 10 <= saved < 200


def _until(happened: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.1)
