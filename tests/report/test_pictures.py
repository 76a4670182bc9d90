from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from velogan.report import pictures, write_report
from velogan.report.run_data import read_run_data

MakeRun = Callable[..., Path]


@pytest.mark.parametrize("count", [1, 2, 5, 24, 25, 100, 1000])
def test_times_are_evenly_chosen_with_first_and_last(count: int) -> None:
    chosen = pictures.pick_evenly(list(range(count)), 24)
    assert (chosen[0], chosen[-1]) == (0, count - 1)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(count, 24)
    steps = {later - earlier for earlier, later in pairwise(chosen)}
    assert not steps or max(steps) - min(steps) <= 1


def test_pages_stay_small_however_many_pictures_there_are(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(size=48, times=30)
    whole = write_report([run]).stat().st_size
    monkeypatch.setattr(pictures, "MAX_BYTES", 100_000)
    entries = pictures.build_galleries([read_run_data(run)])
    assert sum(len(frame["uri"]) for entry in entries for frame in entry["frames"]) < 100_000 * 4 / 3 + 5000
    assert [len(entry["frames"]) for entry in entries] == [24, 24]
    assert write_report([run]).stat().st_size < whole


def test_many_runs_share_the_times(make_run: MakeRun) -> None:
    runs = [read_run_data(make_run(f"run{number}", times=20)) for number in range(4)]
    assert {len(entry["frames"]) for entry in pictures.build_galleries(runs)} == {12}


def test_a_damaged_picture_is_left_out(make_run: MakeRun) -> None:
    run = make_run()
    (run / "samples" / "000000300-a2b.png").write_bytes(b"torn")
    entry = pictures.build_galleries([read_run_data(run)])[0]
    assert [frame["images"] for frame in entry["frames"]] == [100, 200]
