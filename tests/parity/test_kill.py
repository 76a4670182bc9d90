"""A run that is killed and started again ends where an unbroken one ends, bit for bit."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from velogan.cli import main
from velogan.store.checkpoint import list_checkpoints

VELOGAN = Path(sys.executable).with_name("velogan")
KILLED = Path(__file__).with_name("killed.py")


def _flags(run: Path, *, images: int, checkpoint_every: int) -> list[str]:
    flags = f"""train --data apples2oranges --images {images} --image-size 32 --seed 3 --json --out {run}
        --train.checkpoint-every {checkpoint_every}i --train.samples 0 --train.tensorboard false
        --data.render-count 4 --data.render-test 2 --method.pool-size 3 --discriminator.channels 4
        --generator.channels 4 --generator.blocks 1 --generator.dropout true
        --engine.threads 1 --engine.precision fp32"""
    return flags.split()


def _json(output: str) -> dict:
    return json.loads(output.splitlines()[-1])


def _run(*command: str | Path) -> tuple[dict, str]:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return _json(done.stdout), done.stderr


@pytest.mark.parametrize(("how", "images", "kills"), [("calls", 12, 20), ("5", 80, 2)])
def test_killed_anywhere_and_started_again_it_ends_bit_identical(how: str, images: int, kills: int, tmp_path: Path):
    flags = {name: _flags(tmp_path / name, images=images, checkpoint_every=2) for name in ("unbroken", "killed")}
    expected, _ = _run(VELOGAN, *flags["unbroken"])
    result, said = _run(sys.executable, KILLED, how, *flags["killed"])

    found = re.search(r"killed (\d+) times", said)
    assert found
    assert int(found.group(1)) > kills  # else it came through before it met its checkpoints
    assert result["images_seen"] == expected["images_seen"] == images
    assert result["weights_sha256"] == expected["weights_sha256"]
    kept = {path.name for path in (tmp_path / "killed" / "checkpoints").iterdir()}
    assert not [name for name in kept if name.startswith(".writing")]


def _started(flags: list[str], run: Path) -> subprocess.Popen[str]:
    """The real command, once it has written a checkpoint more than there was."""
    before = list_checkpoints(run)[-1:]
    process = subprocess.Popen([VELOGAN, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and list_checkpoints(run)[-1:] == before:
        time.sleep(0.005)
    assert process.poll() is None, process.communicate()[1]
    return process


def test_signals_save_and_exit_cleanly_and_the_run_continues_bit_identical(tmp_path: Path):
    images, run = 300, tmp_path / "stopped"
    expected, _ = _run(VELOGAN, *_flags(tmp_path / "unbroken", images=images, checkpoint_every=10))
    flags = _flags(run, images=images, checkpoint_every=10)
    for number in (signal.SIGTERM, signal.SIGINT):
        process = _started(flags, run)
        process.send_signal(number)
        output, said = process.communicate()
        assert process.returncode == 0, said
        stopped = _json(output)
        assert stopped["finished"] is False
        assert stopped["images_seen"] == int(Path(stopped["checkpoint"]).name) < images  # saved where it stopped
    process = _started(flags, run)
    process.kill()
    process.communicate()
    result, _ = _run(VELOGAN, *flags)
    assert result["finished"] is True
    assert result["weights_sha256"] == expected["weights_sha256"]


def test_a_second_process_on_the_same_run_is_told_which_one_holds_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    flags = _flags(tmp_path / "run", images=100_000, checkpoint_every=10)
    process = _started(flags, tmp_path / "run")
    try:
        assert main(flags) == 2
        assert f"in use by process {process.pid}:" in capsys.readouterr().err
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
