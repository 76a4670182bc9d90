"""Several processes at one folder, and processes that are killed while they fill one."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pytest

from velogan.data.pictures.images import Picture, save_picture
from velogan.store.checkpoint import list_checkpoints
from velogan.store.lock import locked


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


def _digest(command: list[str], velogan) -> str:
    code, said = velogan(command)
    assert code == 0, said
    run = Path(command[command.index("--out") + 1])
    return (list_checkpoints(run)[-1] / "manifest.json").read_text()


def _weights(manifest: str) -> dict[str, str]:
    return {name: value for name, value in json.loads(manifest)["files"].items() if name != "clock.json"}


def test_killed_while_it_fills_the_cache_and_started_again(
    many: Path, flags, start, velogan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cache, more = tmp_path / "cache", ("--data.workers", "1")
    command = flags(tmp_path / "run", *more, "--data.cache-dir", str(cache), images=2, data=many)
    process = start(command)
    while not any(path.stat().st_size for path in cache.glob("prepared/.building-*/pixels.bin")):
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait()[0] == -signal.SIGKILL
    remains = list(cache.glob("prepared/.building-*"))
    assert len(remains) == 1
    assert list(cache.glob("prepared/[!.]*")) == []

    expected = _digest(flags(tmp_path / "other", *more, images=2, data=many), velogan)
    assert _weights(_digest(command, velogan)) == _weights(expected)
    assert len(list(cache.glob("prepared/[!.]*"))) == 2 * 2  # to train on, and held out
    assert list(cache.glob("prepared/.*")) == []


def test_killed_while_it_renders_and_started_again(flags, start, velogan, tmp_path: Path):
    cache = tmp_path / "cache"
    more = ("--data.cache-dir", str(cache), "--data.render-count", "40", "--data.render-test", "1")
    command = flags(tmp_path / "run", *more, images=2)
    command[3] = "apples2oranges"
    process = start(command)
    while not list(cache.glob("rendered/.building-*/trainA/*.png")):
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait()[0] == -signal.SIGKILL
    assert list(cache.glob("rendered/[!.]*")) == []
    assert len(list(cache.glob("rendered/.building-*"))) == 1
    assert velogan(command)[0] == 0
    assert len(list(cache.glob("rendered/[!.]*/trainA/*.png"))) == 40
    assert list(cache.glob("rendered/.*")) == []


def test_two_processes_fill_one_cache_at_once(many: Path, flags, start, tmp_path: Path):
    cache, runs = tmp_path / "cache", [tmp_path / "one", tmp_path / "two"]
    more = ("--data.cache-dir", str(cache), "--data.workers", "1")
    for process in [start(flags(run, *more, images=2, data=many)) for run in runs]:
        code, said = process.wait()
        assert code == 0, said
    one, two = (_weights((list_checkpoints(run)[-1] / "manifest.json").read_text()) for run in runs)
    assert one == two
    assert len(list(cache.glob("prepared/[!.]*"))) == 2 * 2  # to train on, and held out
    assert list(cache.glob("prepared/.*")) == []


def test_of_two_processes_on_one_run_the_second_is_refused_and_the_first_is_not_disturbed(
    flags, start, velogan, same, tmp_path: Path
):
    run, size = tmp_path / "run", {"images": 60, "every": 20}
    first = start(flags(run, **size))
    while not list_checkpoints(run):
        time.sleep(0.002)
    code, said = velogan(flags(run, **size))
    assert code == 2
    assert f"{run} is in use by process {first.pid}: wait for it, or name another" in said
    code, said = first.wait()
    assert code == 0, said
    assert same(run, **size)


def test_the_lock_of_a_dead_process_holds_nobody_up(flags, velogan, same, tmp_path: Path):
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").write_text("4194304 elsewhere")
    assert velogan(flags(run))[0] == 0
    assert same(run)
    assert (run / ".lock").read_text() == f"{os.getpid()} {socket.gethostname()}"


def test_a_process_on_another_machine_is_named_with_it(tmp_path: Path):
    with locked(tmp_path):
        (tmp_path / ".lock").write_text("12 elsewhere")
        with pytest.raises(ValueError, match="in use by process 12 on elsewhere: wait for it"), locked(tmp_path):
            pass
