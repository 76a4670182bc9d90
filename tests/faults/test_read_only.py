"""Folders that cannot be written, from the start or from some moment on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from velogan.store.checkpoint import find_checkpoint, find_corruption, list_checkpoints


def test_rejects_runs_on_a_read_only_disk(disk, flags, velogan, same):
    run = disk.path / "run"
    disk.fill(leave=300_000)
    assert velogan(flags(run))[0] == 1  # leaves a checkpoint that the next start goes on from
    disk.free()
    disk.remount("ro")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert any(path.name == "manifest.json" for path in before)
    code, said = velogan(flags(run))
    assert code == 2
    assert "Read-only file system" in said
    assert "choose another folder" in said
    assert str(run) in said
    code, said = velogan(flags(disk.path / "new"))
    assert code == 2
    assert str(disk.path / "new") in said
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    disk.remount("rw")
    assert velogan(flags(run))[0] == 0
    assert same(run)


def test_rejects_a_file_as_run_folder(flags, velogan, tmp_path: Path):
    (tmp_path / "run").write_text("a file")
    code, said = velogan(flags(tmp_path / "run"))
    assert code == 2
    assert "(Not a directory): choose another folder" in said
    code, said = velogan(flags(tmp_path / "run" / "inner"))
    assert code == 2
    assert "Not a directory" in said


def test_reports_a_folder_that_becomes_read_only_while_training(flags, start, same, tmp_path: Path):
    run, size = tmp_path / "run", {"images": 60, "every": 20}
    process = start(flags(run, **size), plain=True)
    while not list_checkpoints(run):
        time.sleep(0.002)
    (run / "checkpoints").chmod(0o555)
    try:
        code, said = process.wait()
        assert code == 1, said
        assert "Permission denied while saving a checkpoint" in said
        assert "Traceback" not in said
        assert find_corruption(find_checkpoint(run)) == ""
    finally:
        (run / "checkpoints").chmod(0o755)
    code, said = start(flags(run, **size), plain=True).wait()
    assert code == 0, said
    assert same(run, **size)


def test_uses_a_read_only_cache_and_reports_what_it_cannot_write(
    disk, flags, velogan, same, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("VELOGAN_CACHE", str(disk.path))
    disk.remount("ro")
    code, said = velogan(flags(tmp_path / "run"))
    assert code == 1
    assert "Read-only file system while" in said
    assert f"'{disk.path}'" in said
    disk.remount("rw")
    assert velogan(flags(tmp_path / "first"))[0] == 0
    disk.remount("ro")
    assert velogan(flags(tmp_path / "run"))[0] == 0
    assert same(tmp_path / "run")


def test_reports_results_that_cannot_be_written(disk, velogan, unbroken, data: Path):
    run = disk.path / "run"
    assert disk.run(f"cp -r {unbroken()} {disk.mount}/run") == "0"
    (run / "scores.json").write_text("{}")
    disk.remount("ro")
    code, said = velogan(["evaluate", str(run), "--json"])
    assert code == 1
    assert "scores are printed but not saved" in said
    assert "unchanged" in said
    assert "Read-only file system while writing" in said
    assert "scores.json" in said
    code, said = velogan(["translate", str(run), str(data / "testA"), str(run / "out")])
    assert code == 2
    assert f"nothing can be written to {run} (Read-only file system)" in said
    assert (run / "scores.json").read_text() == "{}"
