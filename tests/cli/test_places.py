"""Outputs are checked before any work, in every command; what was computed is always printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from velogan.cli import COMMANDS, main

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
"""Arguments of each command, with inputs that do not exist: the output is checked first."""
OTHERS = {("data", "check"), ("serve",), ("evaluate",)}
"""They write nothing, except `evaluate`, which prints its scores in any case."""


def test_covers_every_command() -> None:
    assert {*WRITE, *OTHERS} == {*COMMANDS}


@pytest.mark.parametrize("words", WRITE, ids=" ".join)
def test_rejects_an_output_that_cannot_be_written_before_work(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("no folder")
    assert main([*words, *(word.replace(OUT, "file/inner") for word in WRITE[words])]) == 2
    message = capsys.readouterr().err
    assert "nothing can be written to" in message
    assert str(tmp_path / "file") in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_report_on_a_file_says_that_it_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "page.txt").write_text("not a run")
    assert main(["report", str(tmp_path / "page.txt")]) == 2
    assert "name the folder of a training run" in capsys.readouterr().err


def test_prints_scores_that_cannot_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, few = tmp_path / "run", ["--data.render-count", "2", "--data.render-test", "2", "--image-size", "32"]
    few += ["--generator.channels", "2", "--generator.blocks", "1", "--discriminator.channels", "2"]
    few += ["--train.samples", "0", "--train.logger", "none", "--engine.precision", "fp32"]
    monkeypatch.setenv("VELOGAN_CACHE", str(tmp_path / "cache"))
    assert main(["train", "cyclegan", "--data", "apples2oranges", "--images", "2", "--out", str(run), *few]) == 0
    broken = "scores.json"
    (run / broken).unlink(missing_ok=True)
    (run / broken).mkdir()  # nothing takes the place of a folder, for root either
    capsys.readouterr()
    monkeypatch.setattr("velogan.report.verdict.summarize_scores", lambda *_: [])  # as of too few pictures
    assert main(["evaluate", str(run), "--features", "none", "--json"]) == 1
    output = capsys.readouterr()
    result = json.loads(output.out.splitlines()[-1])
    assert result["scores"]
    assert broken in result["unwritten"]
    assert broken in output.err
    assert "unchanged" in output.err  # the table
    assert "No verdict" in output.err


def test_reports_many_damaged_files_by_five_and_a_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(40):
        (tmp_path / "in" / f"{number:02d}.png").write_bytes(b"no picture")
    assert main(["translate", "apples2oranges", str(tmp_path / "in"), str(tmp_path / "out"), "--json"]) == 1
    output = capsys.readouterr()
    assert output.err.count("no picture") + output.err.count("not a picture") == 5
    assert "and 35 more" in output.err
    assert len(json.loads(output.out.splitlines()[-1])["failed"]) == 40
