"""Disks that fill up: what was saved stays, the message says what to mend, and the same command then goes on."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from velogan.observe.log import Log, read_stats
from velogan.store.checkpoint import find_checkpoint, find_corruption, list_checkpoints


def _used(folder: Path) -> int:
    """Bytes that a folder takes on a disk of pages."""
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in folder.rglob("*") if path.is_file())


def _is_valid(run: Path) -> bool:
    return not any(map(find_corruption, list_checkpoints(run))) and not list((run / "checkpoints").glob(".*"))


def test_keeps_the_checkpoint_before_if_there_is_no_space_for_the_next(disk, flags, velogan, same, unbroken):
    size = _used(find_checkpoint(unbroken()))
    run = disk.path / "run"
    disk.fill(leave=_used(unbroken()) - 2 * size + size // 2 + 16384)  # the unbroken run keeps three
    code, said = velogan(flags(run))
    assert code == 1
    assert len([line for line in said.splitlines() if line.startswith("velogan:")]) == 1
    assert "No space left on device while saving a checkpoint of 0." in said
    assert str(run / "checkpoints") in said
    assert _is_valid(run)
    assert [path.name for path in list_checkpoints(run)] == ["000000002"]

    assert velogan(flags(run))[0] == 1  # still full
    assert [path.name for path in list_checkpoints(run)] == ["000000002"]
    disk.free()
    assert velogan(flags(run))[0] == 0
    assert same(run)


@pytest.mark.parametrize("pages", [0, 5, 80])
def test_resumes_wherever_space_ended(pages: int, disk, flags, velogan, same):
    run = disk.path / "run"
    disk.fill(leave=4096 * pages)
    code, said = velogan(flags(run))
    assert code == 1
    assert "No space left on device" in said
    assert str(run) in said.splitlines()[-1]
    assert _is_valid(run)
    disk.free()
    assert velogan(flags(run))[0] == 0
    assert same(run)
    assert [row["images"] for row in read_stats(run)] == [1, 2, 3, 4, 5, 6]


def test_writes_complete_lines_to_the_log_on_a_full_disk(disk):
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


@pytest.mark.parametrize(
    ("folder", "leave", "more", "warning"),
    [
        ("tensorboard", 4096, ["--train.logger", "tensorboard"], "tensorboard cannot be written"),
        ("samples", 8192, ["--train.samples", "2", "--train.sample-every", "2i"], "sample pictures cannot be written"),
    ],
)
def test_trains_without_space_for_tensorboard_or_samples(
    folder: str, leave: int, more: list[str], warning: str, disk, flags, velogan, same, tmp_path: Path
):
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").touch()  # as a first start that was interrupted leaves it
    (run / folder).symlink_to(disk.path)
    disk.fill(leave=leave)  # for samples: takes the index, and not a picture
    code, said = velogan(flags(run, *more))
    assert code == 0, said
    assert said.count(f"{warning} (No space left on device)") == 1
    assert same(run)
    assert len(read_stats(run)) == 6


def test_trains_without_space_for_the_page(disk, flags, velogan, same, unbroken):
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
def test_reports_the_folder_of_a_full_cache(
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


def test_reports_translations_without_space(disk, velogan, unbroken, data: Path):
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
