"""`benchmarks/studies/table_1.py`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rich.console import Console

from benchmarks.bench.cases import Case
from benchmarks.studies import table_1
from velogan.config import Config


def test_compares_with_the_paper_s_table(
    monkeypatch: pytest.MonkeyPatch, tiny_config: Callable[..., Config], capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(table_1.CPU_MODES, "fast", {"mode": "eager"})
    monkeypatch.setattr(Case, "config", property(lambda case: tiny_config(data={"crop_size": 32})))
    (row,) = rows = table_1.measure(1, cases=(Case("resnet_9", "basic", 32, 1),))
    assert (row["paper_baseline_ms"], row["paper_streams_ms"]) == (734.42, 809.28)
    assert row["reference_ms"] > 0
    assert row["fast_ms"] > 0
    assert row["streams_ms"] is None
    Console(width=80).print(table_1.table(rows))
    assert "809.28" in capsys.readouterr().out
