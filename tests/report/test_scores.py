from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from velogan.report.page import render
from velogan.report.run_data import read_run_data
from velogan.report.scores import (
    format_interval,
    half_interval,
)

MakeScore = Callable[..., dict[str, Any]]
MakeRun = Callable[..., Path]


@pytest.mark.parametrize(
    ("name", "span", "text"),
    [
        ("psnr_truth_db", [20.94, 21.7], "20.9 to 21.7 dB"),
        ("kid", None, ""),
        ("kid", ["<b>", 2], ""),
    ],
)
def test_intervals_have_units(name: str, span: Any, text: str, score: MakeScore) -> None:
    value = score(name, 1.0, interval_95=span)
    assert format_interval(value) == text
    assert (half_interval(value) is None) == (text == "")


def test_the_page_has_every_column_with_its_interval(make_run: MakeRun, score: MakeScore) -> None:
    scores = [
        score("kid", 1.5, real=0.1, baseline=3.0, better="lower", interval_95=[1.25, 1.75]),
        score("kid", 2.5, real=0.1, baseline=3.0, better="lower", weights="raw", interval_95=None),
        score("kid", 0.75, real=0.1, baseline=3.0, better="lower", checkpoint="best"),
    ]
    run = read_run_data(make_run(scores=scores))
    page = render([run])
    for text in ("last averaged", "last raw", "best averaged", "1.25 to 1.75", "<b>2.50</b>", "<b>0.750</b>"):
        assert text in page
    several = render([run, run])
    assert "best averaged" not in several  # side by side, each run shows the first
