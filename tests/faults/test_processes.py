"""Several processes at one folder, and processes that are killed while they fill one."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pytest

from velogan.data.pictures.images import Picture, save_picture
from velogan.store.checkpoint import digest, list_checkpoints
from velogan.store.lock import lock_folder


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Enough pictures that preparing them takes a while."""
    random = np.random.default_rng(1)
    for folder in ("trainA", "trainB"):
        (tmp_path / "many" / folder).mkdir(parents=True)
        for index in range(40):
            picture = Picture(random.integers(0, 256, (300, 300, 3), np.uint8))
            save_picture(tmp_path / "many" / folder / f"{index:02d}.png", picture)
    return tmp_path / "many"


def _trained(command: list[str], velogan) -> str:
    """The digest of the weights that a command trains."""
    code, said = velogan(command)
    assert code == 0, said
    return digest(list_checkpoints(Path(command[command.index("--out") + 1]))[-1])


@pytest.mark.parametrize("source", ["own", "rendered"])
def test_resumes_after_a_kill_while_filling_the_cache(source: str, many: Path, flags, start, velogan, tmp_path: Path):
    cache, kind = tmp_path / "cache", {"own": "prepared", "rendered": "rendered"}[source]
    more = ["--data.workers", "1"]
    more += ["--data.render-count", "40", "--data.render-test", "1"] if source == "rendered" else []
    here, elsewhere = (flags(tmp_path / name, *more, images=2, data=many) for name in ("run", "other"))
    here += ["--data.cache-dir", str(cache)]
    if source == "rendered":
        here[3] = elsewhere[3] = "apples2oranges"
    process = start(here)
    while not any(path.is_file() and path.stat().st_size for path in cache.glob(f"{kind}/.building-*/**/*")):
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait()[0] == -signal.SIGKILL
    assert len(list(cache.glob(f"{kind}/.building-*"))) == 1
    assert list(cache.glob(f"{kind}/[!.]*")) == []

    assert _trained(here, velogan) == _trained(elsewhere, velogan)
    assert list(cache.glob(f"{kind}/[!.]*"))
    assert list(cache.glob(f"{kind}/.*")) == []


def test_two_processes_fill_one_cache_at_once(many: Path, flags, start, tmp_path: Path):
    cache, runs = tmp_path / "cache", [tmp_path / "one", tmp_path / "two"]
    more = ("--data.cache-dir", str(cache), "--data.workers", "1")
    for process in [start(flags(run, *more, images=2, data=many)) for run in runs]:
        code, said = process.wait()
        assert code == 0, said
    one, two = (digest(list_checkpoints(run)[-1]) for run in runs)
    assert one == two
    assert len(list(cache.glob("prepared/[!.]*"))) == 2 * 2  # to train on, and held out
    assert list(cache.glob("prepared/.*")) == []


def test_rejects_a_second_process_on_one_run(flags, start, velogan, same, tmp_path: Path):
    run, size = tmp_path / "run", {"images": 60, "every": 20}
    first = start(flags(run, **size))
    while not list_checkpoints(run):
        time.sleep(0.002)
    code, said = velogan(flags(run, **size))
    assert code == 2
    assert f"{run} is in use by process {first.pid}: wait for it, or name another folder" in said
    code, said = first.wait()
    assert code == 0, said
    assert same(run, **size)


def test_ignores_the_lock_of_a_dead_process(flags, velogan, same, tmp_path: Path):
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").write_text("4194304 elsewhere")
    assert velogan(flags(run))[0] == 0
    assert same(run)
    assert (run / ".lock").read_text() == f"{os.getpid()} {socket.gethostname()}"


def test_reports_a_process_on_another_machine(tmp_path: Path):
    with lock_folder(tmp_path):
        (tmp_path / ".lock").write_text("12 elsewhere")
        with pytest.raises(ValueError, match="in use by process 12 on elsewhere: wait for it"), lock_folder(tmp_path):
            pass
