"""What a run does not hold in its hand: source pictures that change, and clocks that are set back."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from velogan.config import read_config
from velogan.data.config import DataConfig
from velogan.data.pictures.images import Picture, save_picture
from velogan.data.rendered.apples2oranges import render_folder
from velogan.data.sets import sources
from velogan.observe.log import read_stats


def test_reports_pictures_that_changed_since_they_were_cached(data: Path, flags, velogan, same, tmp_path: Path):
    source, run = tmp_path / "source", tmp_path / "run"
    shutil.copytree(data, source)
    longer = ["--schedule.kind", "constant"]
    assert velogan(flags(run, *longer, data=source))[0] == 0
    code, said = velogan(flags(run, *longer, data=source, images=7))
    assert code == 0
    assert "changed" not in said
    assert "preparing" not in said

    before = (source / "trainA" / "0.png").stat()
    save_picture(source / "trainA" / "0.png", Picture(np.zeros((40, 40, 3), np.uint8)))
    os.utime(source / "trainA" / "0.png", ns=(before.st_atime_ns, before.st_mtime_ns))
    code, said = velogan(flags(run, *longer, data=source, images=8))
    assert code == 0
    assert "the images of domain A have changed since this run started" in said
    assert "at 7 images" in said

    shutil.copyfile(data / "trainA" / "0.png", source / "trainA" / "0.png")
    assert velogan(flags(tmp_path / "other", data=source))[0] == 0
    assert same(tmp_path / "other")


def test_resumes_with_moved_pictures_and_rejects_others(data: Path, flags, velogan, same, tmp_path: Path):
    source, moved, other, run = (tmp_path / name for name in ("source", "moved", "other", "run"))
    shutil.copytree(data, source)
    assert velogan(flags(run, data=source, images=2))[0] == 0
    assert velogan(flags(run, data=tmp_path / "." / "source" / ".." / "source", images=4))[0] == 0
    source.rename(moved)
    shutil.copytree(moved, other)
    save_picture(other / "trainA" / "0.png", Picture(np.zeros((40, 40, 3), np.uint8)))
    code, said = velogan(flags(run, data=other, images=6))
    assert code == 2
    assert f"velogan: --data: {run} was trained with other images of domain A" in said
    code, said = velogan(flags(run, data=moved, images=6))
    assert (code, "changed" in said) == (0, False)
    assert read_config(run).data.path == (str(moved),)


def test_rejects_pictures_that_change_while_they_are_cached(
    data: Path, flags, velogan, same, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(data, tmp_path / "source")
    monkeypatch.setenv("VELOGAN_CACHE", str(tmp_path / "cache"))
    read = sources.read_picture

    def read_and_change(path: Path, **how: bool) -> Picture:
        picture = read(path, **how)
        shutil.copyfile(tmp_path / "source" / "trainA" / "0.png", tmp_path / "source" / "trainA" / "1.png")
        return picture

    with monkeypatch.context() as patch:
        patch.setattr(sources, "read_picture", read_and_change)
        code, said = velogan(flags(tmp_path / "run", data=tmp_path / "source"))
    assert code == 2
    assert "trainA: pictures changed while they were prepared" in said
    assert list((tmp_path / "cache" / "prepared").iterdir()) == []
    shutil.copyfile(data / "trainA" / "1.png", tmp_path / "source" / "trainA" / "1.png")
    assert velogan(flags(tmp_path / "run", data=tmp_path / "source"))[0] == 0
    assert same(tmp_path / "run")


def test_a_clock_that_is_set_back_changes_nothing(
    flags, velogan, same, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run, now = tmp_path / "run", time.time()
    hours = itertools.count(1)
    monkeypatch.setattr(time, "time", lambda: now - 3600 * next(hours))
    assert velogan(flags(run, "--schedule.kind", "constant", "--train.logger", "tensorboard", images=4))[0] == 0
    for path in [run, *run.rglob("*")]:
        os.utime(path, (now + 1e6, now + 1e6))  # written in what is now the future
    code, said = velogan(flags(run, "--schedule.kind", "constant", "--train.logger", "tensorboard"))
    assert code == 0
    assert "at 4 images" in said
    assert same(run, "--schedule.kind", "constant")
    rows = read_stats(run)
    assert [row["images"] for row in rows] == [1, 2, 3, 4, 5, 6]
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)
    assert all(row["images_per_s"] >= 0 for row in rows)
    assert (run / "report.html").is_file()


def test_names_and_counts_damaged_held_out_pictures(flags, velogan, tmp_path: Path):
    render_folder(tmp_path / "set", count=24, test_count=2, image_size=36, test_size=36, seed=0)
    config = DataConfig(path=(str(tmp_path / "set"),))
    held_out = sources.find_sources(config).a.validation
    assert held_out is not None
    (tmp_path / "set" / "trainA" / held_out.names[0]).write_bytes(b"no picture")
    code, said = velogan(flags(tmp_path / "run", data=tmp_path / "set", images=2))
    assert code == 0, said
    assert f"held out for validation: skipped 1 of 2 pictures that cannot be read: {held_out.names[0]}" in said
    counts = json.loads((tmp_path / "run" / "run.json").read_text())["data"]["a"]
    assert (counts["train"], counts["validation"], counts["skipped"]) == (22, 1, 1)
