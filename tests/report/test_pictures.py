from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from velogan.report import pictures, write_report
from velogan.report.run_data import read_run_data

MakeRun = Callable[..., Path]


@pytest.mark.parametrize("count", [1, 24, 25, 1000])
def test_picks_evenly_with_first_and_last(count: int) -> None:
    picked = pictures.pick_evenly(list(range(count)), 24)
    assert (picked[0], picked[-1]) == (0, count - 1)
    assert picked == sorted(set(picked))
    assert len(picked) == min(count, 24)
    steps = {later - earlier for earlier, later in pairwise(picked)}
    assert not steps or max(steps) - min(steps) <= 1


def test_limits_the_size_of_pages(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(size=48, times=30)
    unlimited = write_report([run]).stat().st_size
    monkeypatch.setattr(pictures, "MAX_BYTES", 100_000)
    entries = pictures.build_galleries([read_run_data(run)])
    assert sum(len(frame["uri"]) for entry in entries for frame in entry["frames"]) < 100_000 * 4 / 3 + 5000
    assert [len(entry["frames"]) for entry in entries] == [24, 24]
    assert write_report([run]).stat().st_size < unlimited
