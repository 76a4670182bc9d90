"""`benchmarks/gpu.py`: its items, at sizes for a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_item

ROOT = Path(__file__).parents[2]


def _gpu(out: Path, *flags: str) -> tuple[str, dict[str, Any]]:
    """Return the output of the command and the items of its gpu.json."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(out), *flags]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    printed = subprocess.run(command, capture_output=True, text=True, env=env, check=True).stdout
    return printed, json.loads((out / "gpu.json").read_text())["items"]


def test_a_failed_item_does_not_end_the_others(tmp_path: Path):
    printed, items = _gpu(tmp_path, "--minutes", "9", "--only", "fast", "epochs", "--tiny", "--data", str(tmp_path))
    assert items["epochs"]["status"] == "failed"
    assert "it needs the set apple2orange" in items["epochs"]["reason"]
    assert items["fast"]["status"] == "done"
    assert float(items["fast"]["metrics"][0][2]) > 0
    assert "| 32x32 | 4 |" in (tmp_path / "RECORDS.md").read_text()
    assert [line.partition(",")[0] for line in printed.splitlines()] == ["epochs: failed", "fast: done"]


def test_skips_items_without_enough_time_and_keeps_earlier_results(tmp_path: Path):
    before = {"table_1": {"status": "done", "description": "a table", "lines": ["| found |"]}}
    (tmp_path / "gpu.json").write_text(json.dumps({"items": before}))
    printed, items = _gpu(tmp_path, "--minutes", "0.3")
    assert items["table_1"] == before["table_1"]
    assert "table_1: done before" in printed
    assert {item["status"] for name, item in items.items() if name != "table_1"} == {"skipped"}
    assert items["tests"]["reason"] == "it needs 3 minutes, but 0.0 remain"


def _make_context(folder: Path) -> gpu_item.Context:
    """Return a context with `folder` as the sets and the output."""
    (folder / "apples").mkdir()
    return gpu_item.Context(folder, folder, False, time.time() + 600, 2)


def test_trainings_share_the_time_and_a_failed_one_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    called: list[Sequence[str]] = []

    def call(
        context: gpu_item.Context, argv: Sequence[str], log: str, *, until: float | None = None
    ) -> tuple[int, str]:
        called.append(argv)
        if log == "broken":
            return 1, ""
        (context.out / "good" / "checkpoints").mkdir(parents=True, exist_ok=True)
        score = {"name": "squeeze_kid", "direction": "a2b", "value": 3.0, "baseline": 10.0, "real": 0.0}
        scores = [{**score, "weights": "ema"}, {**score, "weights": "raw"}]
        return 0, "log\n" + json.dumps({"scores": scores} if "evaluate" in argv else {"images_seen": 70})

    monkeypatch.setattr(gpu_item.Context, "call", call)
    trainings = [gpu_item.Training(name, "apples", ("fast",), minutes=10) for name in ("good", "broken", "third")]
    trainings.append(gpu_item.Training("absent", "pears", ("fast",)))
    good, broken, _, absent = rows = gpu_item.train_all(_make_context(tmp_path), trainings)
    minutes = [float(argv[argv.index("--minutes") + 1]) for argv in called if "--minutes" in argv]
    assert minutes == pytest.approx([3.5] * 3, abs=0.1), "half of ten, less starting and scoring"
    assert (good["images"], len(good["scores"])) == (70, 1)
    assert "exit code 1: see broken.log" in broken["error"]
    assert "it needs the set pears" in absent["error"]
    table = gpu_item.scores_table(rows)
    assert any(line.startswith("| good | 70 |") and "| a2b | 70% |" in line for line in table)


def test_interrupts_a_command_at_its_deadline(tmp_path: Path):
    context, started_at = _make_context(tmp_path), time.time()
    script = "import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('saved')"
    code, printed = context.call(
        ["-c", script], "sleeper", until=started_at + 5
    )  # a busy machine needs some to start Python
    assert (code, printed) == (0, "saved\n")


def test_closed_fraction_needs_both_reference_values():
    assert gpu_item.closed_fraction({"value": 3.0, "baseline": 10.0, "real": 0.0}) == 0.7
    assert gpu_item.closed_fraction({"value": 3.0, "baseline": 10.0, "real": None}) is None
    assert gpu_item.closed_fraction({"value": 3.0}) is None
    assert gpu_item.closed_fraction({"value": 0.010, "baseline": 0.001, "real": 0.002}) is None, (
        "the inputs are as real"
    )
