"""Files that changed on the disk by themselves: found by their checksums, named, and the ones before used."""

from __future__ import annotations

import logging
import os
import shutil
import time
from pathlib import Path

import pytest

from velogan.engine.trainer import Batches, Trainer
from velogan.store.checkpoint import (
    find_checkpoint,
    find_corruption,
    hide_checkpoint,
    list_checkpoints,
    mark_best,
    read_best,
)


@pytest.fixture
def run(unbroken, tmp_path: Path) -> Path:
    """A finished run with checkpoints at 2, 4 and 6 images, to be damaged."""
    shutil.copytree(unbroken(), tmp_path / "run")
    return tmp_path / "run"


def _damage(run: Path, images: int, file: str = "G_A.safetensors", kind: str = "flipped") -> Path:
    path = run / "checkpoints" / f"{images:09d}" / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if kind == "missing":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2] if kind == "cut" else content)
    return path


@pytest.mark.parametrize(("file", "kind"), [("state.safetensors", "flipped"), ("clock.json", "missing")])
def test_reports_a_damaged_checkpoint_and_uses_the_one_before(file: str, kind: str, run: Path, flags, velogan, same):
    path = _damage(run, 6, file, kind)
    code, said = velogan(flags(run))
    assert code == 0, said
    assert str(path.parent) in said
    assert "checkpoint 000000006 is not used" in said
    assert "resuming" in said
    assert "at 4 images" in said
    assert same(run)
    assert [find_corruption(folder) for folder in list_checkpoints(run)] == ["", "", ""]


def test_rejects_a_run_whose_checkpoints_are_all_damaged(run: Path, flags, velogan, same, unbroken):
    broken = [_damage(run, images) for images in (2, 4, 6)]
    before = {path: path.read_bytes() for path in (run / "checkpoints").rglob("*") if path.is_file()}
    code, said = velogan(flags(run))
    assert code == 1
    assert f"{run / 'checkpoints'} contains no valid checkpoint" in said
    for path in broken:
        assert f"{path} does not match its checksum" in said
    assert {path: path.read_bytes() for path in (run / "checkpoints").rglob("*") if path.is_file()} == before
    assert velogan(["translate", str(run), str(run / "samples"), str(run / "out")])[0] == 1

    shutil.copyfile(unbroken() / "checkpoints" / "000000002" / "G_A.safetensors", broken[0])
    assert velogan(flags(run))[0] == 0
    assert same(run)


def test_removes_damaged_checkpoints_before_valid_ones(
    run: Path, flags, velogan, same, monkeypatch: pytest.MonkeyPatch
):
    _damage(run, 4)
    _damage(run, 6)
    take_step = Trainer._train_step

    def step_and_stop(trainer: Trainer, batches: Batches) -> None:
        take_step(trainer, batches)
        trainer.stop_requested = True

    monkeypatch.setattr(Trainer, "_train_step", step_and_stop)
    assert velogan([*flags(run), "--train.keep", "1"])[0] == 0
    assert [path.name for path in list_checkpoints(run)] == ["000000003"]  # not the later, damaged ones
    monkeypatch.undo()
    assert velogan(flags(run))[0] == 0
    assert same(run)


def test_warns_of_damage_when_a_checkpoint_is_used(run: Path, caplog: pytest.LogCaptureFixture):
    path = _damage(run, 6)
    with caplog.at_level(logging.WARNING):
        assert find_checkpoint(run).name == "000000004"
    assert caplog.messages == [f"{path} does not match its checksum; checkpoint 000000004 is used"]


def test_rejects_a_damaged_best_checkpoint_and_unmarks_it(run: Path, flags, velogan, same):
    mark_best(run, checkpoint=run / "checkpoints" / "000000002", name="score", score=0.5, scored_on="2 apples")
    assert find_checkpoint(run, "best").name == "000000002"
    path = _damage(run, 2)
    with pytest.raises(OSError, match=r"G_A\.safetensors does not match its checksum: it was the best.*use last"):
        find_checkpoint(run, "best")
    code, said = velogan(flags(run))
    assert code == 0, said
    assert f"{path} does not match its checksum: the best checkpoint is corrupt" in said
    assert read_best(run) is None
    assert same(run)


def test_restores_a_checkpoint_after_a_crash_between_renames(run: Path, flags, velogan, same):
    for images in (4, 2):
        shutil.rmtree(run / "checkpoints" / f"{images:09d}")
    hide_checkpoint(run / "checkpoints" / "000000006")
    code, said = velogan(flags(run))
    assert code == 0
    assert "at 6 images" in said
    assert same(run)


@pytest.mark.parametrize("kind", ["flipped", "cut"])
def test_reports_and_repairs_damage_in_the_cache(
    kind: str, flags, velogan, same, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("VELOGAN_CACHE", str(tmp_path / "cache"))
    assert velogan(flags(tmp_path / "first"))[0] == 0
    for pixels in (tmp_path / "cache").glob("prepared/*/pixels.bin"):
        content = bytearray(pixels.read_bytes())
        content[100] ^= 255
        pixels.write_bytes(content[:-1] if kind == "cut" else content)
    code, said = velogan(flags(tmp_path / "run"))
    assert code == 0
    assert said.count("truncated" if kind == "cut" else "do not match their checksum") == 2  # domains
    assert same(tmp_path / "run")


def test_reports_a_cache_that_is_cut_short_while_a_run_reads_it(flags, start, velogan, tmp_path: Path):
    """A mapped file would end the process by a signal (SIGBUS), without a word."""
    cache = ("--data.cache-dir", str(tmp_path / "cache"))
    process = start(flags(tmp_path / "run", *cache, images=99_999))
    while not list(tmp_path.glob("run/checkpoints/0*")):
        time.sleep(0.001)
    pixels = sorted(tmp_path.glob("cache/prepared/*/pixels.bin"))
    for file in pixels:
        os.truncate(file, 0)
    code, said = process.wait()
    assert code == 1, said
    assert "Traceback" not in said
    assert said.count("truncated after it was opened") == 1
    assert any(f"'{file}'" in said for file in pixels)
    code, said = velogan(flags(tmp_path / "other", *cache))
    assert code == 0
    assert "truncated" in said
