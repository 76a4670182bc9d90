from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from velogan.observe.log import LOGGERS, Log, read_stats


def write(run: Path, images: range) -> None:
    with Log(run, logger="none") as log:
        log.truncate(images.start)
        for seen in images:
            log.write({"images": seen, "loss": seen / 2})


def test_later_logs_append(tmp_path: Path) -> None:
    write(tmp_path / "new" / "run", range(3))
    write(tmp_path / "new" / "run", range(3, 5))
    assert read_stats(tmp_path / "new" / "run") == [{"images": n, "loss": n / 2} for n in range(5)]


def test_writes_rows_at_once(tmp_path: Path) -> None:
    with Log(tmp_path, logger="none") as log:
        log.write({"images": 1, "text": "x" * 20000})
        assert [row["images"] for row in read_stats(tmp_path)] == [1]


def test_a_missing_file_has_no_rows(tmp_path: Path) -> None:
    assert read_stats(tmp_path) == []


@pytest.mark.parametrize("torn", ['{"images": 3, "lo', '{"images": 3}', '{"images": 3, "n": "\xe9'])
def test_drops_an_incomplete_last_line(tmp_path: Path, torn: str) -> None:
    write(tmp_path, range(3))
    with (tmp_path / "stats.jsonl").open("ab") as file:
        file.write(torn.encode()[:-1])
    assert [row["images"] for row in read_stats(tmp_path)] == [0, 1, 2]
    write(tmp_path, range(3, 4))
    lines = (tmp_path / "stats.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["images"] for line in lines] == [0, 1, 2, 3]


def test_writes_null_for_values_that_are_not_finite(tmp_path: Path) -> None:
    with Log(tmp_path, logger="none") as log:
        log.write({"images": 1, "a": float("nan"), "b": float("inf"), "c": 1.5})
    text = (tmp_path / "stats.jsonl").read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=pytest.fail) == {"images": 1, "a": None, "b": None, "c": 1.5}


def test_truncates_and_appends(tmp_path: Path) -> None:
    with Log(tmp_path, logger="none") as log:
        for seen in (100, 200, 300):
            log.write({"images": seen})
        log.truncate(200)
        assert [row["images"] for row in read_stats(tmp_path)] == [100, 200]
        log.write({"images": 250})
    assert [row["images"] for row in read_stats(tmp_path)] == [100, 200, 250]
    assert [path.name for path in tmp_path.iterdir()] == ["stats.jsonl"]


def test_tensorboard_forgets_truncated_rows_although_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Log(tmp_path) as log:
        log.write({"images": 100, "loss": 1.0})
        log.write({"images": 200, "loss": 2.0, "bad": float("nan")})
        log.image("samples/a2b", np.zeros((4, 6, 3), np.uint8), images=200)
    hour_ago = time.time() - 3600
    monkeypatch.setattr(time, "time", lambda: hour_ago)
    with Log(tmp_path) as log:
        log.truncate(100)
        log.write({"images": 150, "loss": 3.0})
    monkeypatch.undo()

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(100, 1.0), (150, 3.0)]
    assert "bad" not in events.Tags()["scalars"]


class _Recorder:
    def __init__(self, run: Path, purge_step: int | None) -> None:
        self.rows: list[tuple[str, int]] = []
        RECORDERS.append(self)

    def scalars(self, values: Mapping[str, float], *, images: int) -> None:
        if images > 2:
            raise RuntimeError("no network")
        self.rows += [(name, images) for name in values]

    def image(self, name: str, grid: np.ndarray, *, images: int) -> None:
        self.rows.append((name, images))

    def close(self) -> None:
        self.rows.append(("closed", 0))


RECORDERS: list[_Recorder] = []


def test_an_error_of_a_logger_is_reported_once_and_ends_the_copy_only(tmp_path, monkeypatch):
    monkeypatch.setitem(LOGGERS, "tensorboard", _Recorder)
    lines: list[str] = []
    with Log(tmp_path, print_line=lines.append) as log:
        for images in range(1, 6):
            log.write({"images": images, "loss": 0.5, "note": "text"})
        log.image("samples", np.zeros((2, 2, 3), np.uint8), images=5)
    assert RECORDERS.pop().rows == [("loss", 1), ("loss", 2), ("closed", 0)]
    (line,) = lines
    assert line.startswith("tensorboard cannot be written (no network): ")
    assert [row["images"] for row in read_stats(tmp_path)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("logger", ["wandb", "mlflow"])
def test_a_missing_client_is_named_with_its_extra(tmp_path, monkeypatch, logger: str):
    monkeypatch.setattr("velogan.files.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=rf"train.logger={logger} needs {logger}: .*\[{logger}\]"):
        Log(tmp_path, logger=logger)
