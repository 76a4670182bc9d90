"""`benchmarks/gpu.py`: its items, at sizes for a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def test_closed_fraction_needs_both_reference_values():
    assert gpu_item.closed_fraction({"value": 3.0, "baseline": 10.0, "real": 0.0}) == 0.7
    assert gpu_item.closed_fraction({"value": 3.0, "baseline": 10.0, "real": None}) is None
    assert gpu_item.closed_fraction({"value": 3.0}) is None
    assert gpu_item.closed_fraction({"value": 0.010, "baseline": 0.001, "real": 0.002}) is None, (
        "the inputs are as real"
    )
