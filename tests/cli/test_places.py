"""Places that commands write to are tried before any work, in every command; what was computed is always shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from velogan.cli import COMMANDS, main
from velogan.data.pictures.images import Picture, save_picture
from velogan.evaluation import evaluate as room

OUT = "OUT"
WRITE: dict[tuple[str, ...], list[str]] = {
    ("train",): ["--data", "nowhere", "--images", "1", "--out", OUT],
    ("search",): ["--data", "nowhere", "--images", "1", "--out", OUT],
    ("translate",): ["nowhere", "nowhere", OUT],
    ("import",): ["nowhere", OUT],
    ("export",): ["nowhere", OUT, "--format", "reference"],
    ("demo",): ["--out", OUT],
    ("report",): ["nowhere", "--out", f"{OUT}/page.html"],
    ("sweep",): ["--data", "nowhere", "--images", "1", "--vary", "optimizer.lr=1,2", "--out", OUT],
    ("profile",): ["--out", OUT],
    ("data", "render"): ["apples2oranges", OUT],
    ("data", "download"): ["horse2zebra", OUT],
}
"""What each command is asked, with inputs that do not exist: the place is tried before these are looked for."""
OTHERS = {("data", "check"), ("serve",), ("evaluate",)}
"""They write nothing; but `evaluate`, whose figures are printed in any case."""


def test_every_command_is_here() -> None:
    assert {*WRITE, *OTHERS} == {*COMMANDS}


@pytest.mark.parametrize("words", WRITE, ids=" ".join)
def test_a_place_is_tried_first(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("no folder")
    assert main([*words, *(word.replace(OUT, "file/inner") for word in WRITE[words])]) == 2
    said = capsys.readouterr().err
    assert "nothing can be written to" in said, said
    assert str(tmp_path / "file") in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_of_several_processes_the_first_alone_needs_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no folder")
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "1"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    assert main(["report", str(tmp_path / "nowhere"), "--out", str(tmp_path / "file" / "page.html")]) == 2
    assert "nothing can be written" not in capsys.readouterr().err


@pytest.mark.parametrize("broken", ["scores.json", "report.html"])
def test_figures_are_shown_whatever_becomes_of_the_file(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, few = tmp_path / "run", ["--data.render-count", "2", "--data.render-test", "2", "--image-size", "32"]
    few += ["--generator.channels", "2", "--generator.blocks", "1", "--discriminator.channels", "2"]
    few += ["--train.samples", "0", "--train.logger", "none", "--engine.precision", "fp32"]
    monkeypatch.setenv("VELOGAN_CACHE", str(tmp_path / "cache"))
    assert main(["train", "cyclegan", "--data", "apples2oranges", "--images", "2", "--out", str(run), *few]) == 0
    (run / broken).unlink(missing_ok=True)
    (run / broken).mkdir()  # nothing takes the place of a folder, for root either
    capsys.readouterr()
    monkeypatch.setattr("velogan.report.verdict.verdict", lambda *_: [])  # as of too few pictures
    assert main(["evaluate", str(run), "--features", "none", "--json"]) == 1
    said = capsys.readouterr()
    result = json.loads(said.out.splitlines()[-1])
    assert result["scores"]
    assert broken in result["unwritten"]
    assert broken in said.err
    assert "unchanged" in said.err  # the table
    assert "No verdict" in said.err


def test_that_figures_will_not_be_kept_is_said_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    order: list[str] = []

    def refuse(flag: str, folder: Path) -> None:
        raise ValueError(f"{flag} {folder}: nothing can be written")

    def work(*_: Any, **__: Any) -> dict[str, Any]:
        order.append(capsys.readouterr().err)
        raise ValueError("no run")

    monkeypatch.setattr("velogan.cli.evaluate.check_writable", refuse)
    monkeypatch.setattr(room, "evaluate", work)
    assert main(["evaluate", str(tmp_path)]) == 2
    assert "scores are printed but not saved" in order[0]


def test_forty_bad_files_are_a_count_and_five(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(40):
        (tmp_path / "in" / f"{number:02d}.png").write_bytes(b"no picture")
    assert main(["translate", "apples2oranges", str(tmp_path / "in"), str(tmp_path / "out"), "--json"]) == 1
    said = capsys.readouterr()
    assert said.err.count("no picture") + said.err.count("not a picture") == 5
    assert "and 35 more" in said.err
    assert len(json.loads(said.out.splitlines()[-1])["failed"]) == 40


def test_an_output_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_picture(tmp_path / "a.png", Picture(np.zeros((16, 16, 3), np.uint8)))
    (tmp_path / "out" / "a.png" / "within").mkdir(parents=True)
    words = ["translate", "apples2oranges", str(tmp_path / "a.png"), str(tmp_path / "out"), "--overwrite"]
    assert main(words) == 1
    assert f"{tmp_path / 'out' / 'a.png'} cannot be written" in capsys.readouterr().err
