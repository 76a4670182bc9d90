"""Disks that fill up: what was saved stays, the message says what to mend, and the same command then goes on."""

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path

import pytest

from velogan.files import write_text
from velogan.observe.log import Log, read_stats
from velogan.store.checkpoint import find_checkpoint, find_corruption, list_checkpoints


def _used(folder: Path) -> int:
    """Bytes that a folder takes on a disk of pages."""
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in folder.rglob("*") if path.is_file())


def _whole(run: Path) -> bool:
    return not any(map(find_corruption, list_checkpoints(run))) and not list((run / "checkpoints").glob(".*"))


def test_without_room_for_the_next_checkpoint_the_one_before_stays(disk, flags, velogan, same, unbroken):
    size = _used(find_checkpoint(unbroken()))
    run = disk.path / "run"
    disk.fill(leave=_used(unbroken()) - 2 * size + size // 2 + 16384)  # the unbroken run keeps three
    code, said = velogan(flags(run))
    assert code == 1
    assert len([line for line in said.splitlines() if line.startswith("velogan:")]) == 1
    assert "No space left on device while saving a checkpoint of 0." in said
    assert str(run / "checkpoints") in said
    assert _whole(run)
    assert [path.name for path in list_checkpoints(run)] == ["000000002"]

    assert velogan(flags(run))[0] == 1  # still full
    assert [path.name for path in list_checkpoints(run)] == ["000000002"]
    disk.free()
    assert velogan(flags(run))[0] == 0
    assert same(run)


@pytest.mark.parametrize("pages", [0, 2, 5, 20, 80])
def test_wherever_the_room_ends_the_same_command_goes_on_later(pages: int, disk, flags, velogan, same):
    run = disk.path / "run"
    disk.fill(leave=4096 * pages)
    code, said = velogan(flags(run))
    assert code == 1
    assert "No space left on device" in said
    assert str(run) in said.splitlines()[-1]
    assert _whole(run)
    disk.free()
    assert velogan(flags(run))[0] == 0
    assert same(run)
    assert [row["images"] for row in read_stats(run)] == [1, 2, 3, 4, 5, 6]


def test_asked_to_stop_on_a_full_disk_it_says_so_and_keeps_the_checkpoint_before(disk, flags, start, same):
    run, size = disk.path / "run", {"images": 60, "every": 20}
    process = start(flags(run, **size))
    while not list_checkpoints(run):
        time.sleep(0.002)
    disk.fill()
    os.kill(process.pid, signal.SIGTERM)
    code, said = process.wait()
    assert code == 1, said
    assert "No space left on device" in said
    assert "Traceback" not in said
    assert _whole(run)
    kept = find_checkpoint(run).name
    disk.free()
    code, said = start(flags(run, **size)).wait()
    assert code == 0, said
    assert f"at {int(kept):,} images" in said
    assert same(run, **size)


def test_a_full_disk_tears_no_line_of_the_log(disk):
    run, counted = disk.path / "run", itertools.count(1)

    def fill(log: Log) -> None:
        for images in counted:
            log.write({"images": images, "text": "x" * 99})

    with Log(run, logger="none") as log:
        log.write({"images": 0})
        disk.fill(leave=4096)
        with pytest.raises(OSError, match=r"No space left on device while logging.*stats\.jsonl"):
            fill(log)
        written = next(counted) - 1
        assert written > 30
        assert [row["images"] for row in read_stats(run)] == list(range(written))
        assert (run / "stats.jsonl").read_bytes().endswith(b"}\n")
        log.truncate(2)  # needs no room
        assert [row["images"] for row in read_stats(run)] == [0, 1, 2]
        disk.free()
        log.write({"images": 3})
    assert [row["images"] for row in read_stats(run)] == [0, 1, 2, 3]


def test_a_small_file_is_replaced_whole_or_not_at_all(disk):
    write_text(disk.path / "file", "old")
    disk.fill()
    with pytest.raises(OSError, match=r"No space left on device while writing.*file"):
        write_text(disk.path / "file", "new")
    assert (disk.path / "file").read_text() == "old"
    assert sorted(path.name for path in disk.path.iterdir()) == ["ballast", "file"]


def test_training_goes_on_without_tensorboard(disk, flags, velogan, same, tmp_path: Path):
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").touch()  # as a first start that was interrupted leaves it
    (run / "tensorboard").symlink_to(disk.path)
    disk.fill(leave=4096)
    code, said = velogan(flags(run, "--train.logger", "tensorboard"))
    assert code == 0, said
    assert said.count("tensorboard cannot be written (No space left on device)") == 1
    assert same(run)
    assert len(read_stats(run)) == 6


def test_training_goes_on_without_sample_pictures(disk, flags, velogan, same, tmp_path: Path):
    run, more = tmp_path / "run", ("--train.samples", "2", "--train.sample-every", "2i")
    run.mkdir()
    (run / ".lock").touch()
    (run / "samples").symlink_to(disk.path)
    disk.fill(leave=8192)  # takes the index, and not a picture
    code, said = velogan(flags(run, *more))
    assert code == 0, said
    assert said.count("sample pictures cannot be written (No space left on device): training continues without") == 1
    assert sorted(path.name for path in disk.path.iterdir()) == ["ballast", "index.json"]
    assert same(run)


def test_training_ends_well_without_room_for_the_page(disk, flags, velogan, same, unbroken):
    run, page = disk.path / "run", (unbroken() / "report.html").stat().st_size
    disk.fill(leave=_used(unbroken()) + page // 2)  # for one page, and not for a new one beside it
    code, said = velogan(flags(run))
    assert code == 0, said
    assert "report.html cannot be written (No space left on device" in said
    assert "done: trained on 6 images" in said
    assert [one.name for one in run.glob("*report*")] == ["report.html"]  # of an earlier checkpoint
    assert same(run)
    disk.free()
    assert velogan(["report", str(run)])[0] == 0
    assert (run / "report.html").is_file()


@pytest.mark.parametrize("source", ["own", "rendered"])
def test_a_full_cache_says_which_folder_and_leaves_nothing_behind(
    source: str, disk, flags, velogan, same, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cache = disk.path / "cache"
    monkeypatch.setenv("VELOGAN_CACHE", str(cache))
    command = flags(tmp_path / "run")
    if source == "rendered":
        command += ["--data.render-count", "2", "--data.render-test", "1"]
        command[3] = "apples2oranges"
    disk.fill(leave=8192)
    code, said = velogan(command)
    assert code == 1
    assert "No space left on device while" in said
    assert str(cache) in said
    assert "name another folder" in said
    assert not [path for path in cache.rglob("*") if path.is_file()]
    disk.free()
    assert velogan(command)[0] == 0
    assert source == "rendered" or same(tmp_path / "run")


def test_translations_without_room_are_named_and_none_is_half_written(disk, velogan, unbroken, data: Path):
    out = disk.path / "out"
    command = ["translate", str(unbroken()), str(data / "testA"), str(out)]
    disk.fill()
    code, said = velogan(command)
    assert code == 1
    for name in ("0.png", "1.png"):
        assert any(name in line and "No space left on device" in line for line in said.splitlines())
    assert not [path for path in out.rglob("*") if path.is_file()]
    disk.free()
    assert velogan(command)[0] == 0
    assert sorted(path.name for path in out.iterdir()) == ["0.png", "1.png"]
