from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from velogan.report.page import render
from velogan.report.run_data import read_run_data
from velogan.report.scores import (
    SAME_AS_LAST,
    column_title,
    format_interval,
    format_value,
    group_scores,
    half_interval,
    place_on_bar,
)

MakeScore = Callable[..., dict[str, Any]]
MakeRun = Callable[..., Path]


def test_groups_scores_by_metric_and_checkpoint(score: MakeScore) -> None:
    scores = [
        score("kid", 1.0),
        score("fid", 2.0),
        score("kid", 3.0, weights="raw"),
        score("kid", 4.0, checkpoint="best"),
        score("kid", 5.0, direction="b2a"),
    ]
    columns, rows = group_scores(scores)
    assert [column_title(column) for column in columns] == ["last averaged", "last raw", "best averaged"]
    assert [(row.first["name"], row.first["direction"]) for row in rows] == [
        ("kid", "a2b"),
        ("fid", "a2b"),
        ("kid", "b2a"),
    ]
    values = [rows[0].by_column[column]["value"] for column in columns]
    assert values == [1.0, 3.0, 4.0]
    assert column_title(group_scores([score(weights=None, checkpoint=None)])[0][0]) == "value"


@pytest.mark.parametrize(
    ("name", "span", "text"),
    [
        ("psnr_truth_db", [20.94, 21.7], "20.9 to 21.7 dB"),
        ("lite1_share_class_3", [0.1, 0.25], "10.0 to 25.0 %"),
        ("kid", [0.61, 1.5], "0.610 to 1.50"),
        ("kid", None, ""),
        ("kid", [1.0], ""),
        ("kid", ["<b>", 2], ""),
    ],
)
def test_intervals_have_units(name: str, span: Any, text: str, score: MakeScore) -> None:
    value = score(name, 1.0, interval_95=span)
    assert format_interval(value) == text
    assert (half_interval(value) is None) == (text == "")


def test_the_unchanged_input_is_the_limit_of_input_metrics(score: MakeScore) -> None:
    layout = score("structure", 0.7, real=0.1, baseline=1.0)
    assert (place_on_bar(layout, [layout]).baseline, place_on_bar(layout, [layout]).is_rival) == (1.0, False)
    assert place_on_bar(layout, [layout]).value == pytest.approx(0.7)
    assert format_value(layout, 0.7) == "0.700"


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


def test_the_page_says_if_the_best_is_the_last(make_run: MakeRun, score: MakeScore) -> None:
    run = make_run(scores=[score("kid", 1.5)])
    (run / "scores.json").write_text(
        (run / "scores.json").read_text().replace('"images": 48', f'"images": 48, "best": "{SAME_AS_LAST}"')
    )
    assert ">= last</td>" in render([read_run_data(run)])
