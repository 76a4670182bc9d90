from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from velogan.report import scores
from velogan.report.run_data import MAX_POINTS, flatten, mean_curves, read_run_data

MakeRun = Callable[..., Path]
MakeScore = Callable[..., dict[str, Any]]


def test_long_logs_are_thinned_to_means() -> None:
    stats = [{"images": n, "loss": float(n % 2)} for n in range(2 * MAX_POINTS)]
    thinned = mean_curves(stats)
    assert len(thinned["images"]) == MAX_POINTS
    assert thinned["images"][:2] == [0.5, 2.5]
    assert set(thinned["loss"]) == {0.5}


def test_names_that_come_late_leave_gaps() -> None:
    rows = [
        {"images": 1},
        {"images": 2, "late": 5, "text": "x", "flag": True},
        {"images": 3, "late": float("nan")},
    ]
    assert mean_curves(rows) == {"images": [1, 2, 3], "late": [None, 5, None]}


def test_nested_fields_get_dotted_names() -> None:
    assert flatten({"a": {"b": {"c": 1}, "d": {}}, "e": [1]}) == {"a.b.c": 1, "a.d": {}, "e": [1]}


def test_the_newest_finite_figure_counts(make_run: MakeRun) -> None:
    run = make_run()
    with (run / "stats.jsonl").open("a") as file:
        file.write('{"images": 1100, "seconds": null}\n')
    facts = read_run_data(run)
    assert (facts.images_seen, facts.last_value("seconds"), facts.last_value("nothing")) == (1100, 25.0, None)


def test_without_a_log_the_samples_tell_the_position(make_run: MakeRun) -> None:
    run = make_run()
    (run / "stats.jsonl").unlink()
    assert read_run_data(run).images_seen == 300


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("psnr_object_db", 21.34, "21.3 dB"),
        ("lite1_share_class_340", 0.4249, "42.5 %"),
        ("ssim_object", 0.68, "0.680"),
        ("lite1_kid", 0.0279, "0.0279"),
        ("lite1_fid", 123.45, "123.5"),
        ("lite2_share_class_340", 0.4249, "42.5 %"),
        ("lite1_kid", None, "unknown"),
    ],
)
def test_figures_have_units(name: str, value: float | None, text: str, score: MakeScore) -> None:
    assert scores.format_value(score(name), value) == text


def test_right_is_better_for_either_kind_of_score(score: MakeScore) -> None:
    better = score("lite1_kid", 0.02, real=0.001, baseline=0.15, better="lower")
    bar = scores.place_on_bar(better, [better])
    assert bar.baseline is not None
    assert bar.real is not None
    assert 0 <= bar.baseline < bar.value < bar.real <= 1
    assert scores.improvement(better) == pytest.approx(0.13)
    higher = score("lite1_share_class_340", 0.4, real=0.9, baseline=0.0)
    assert scores.place_on_bar(higher, [higher]) == scores.Bar(value=0.4, baseline=0.0, real=0.9)


def test_bars_of_one_score_have_one_scale(score: MakeScore) -> None:
    both = [score("lite1_fid", 10.0, baseline=None), score("lite1_fid", 20.0, baseline=None)]
    low, high = (scores.place_on_bar(one, both).value for one in both)
    assert high == pytest.approx(2 * low)


@pytest.mark.parametrize("value", [-3.0, 0.0, 99.0])
def test_bars_hold_any_figure(value: float, score: MakeScore) -> None:
    for name in ("psnr_object_db", "ssim_object", "other"):
        one = score(name, value, baseline=None)
        assert 0 <= scores.place_on_bar(one, [one]).value <= 1


def _scored(run: Path, figures: dict[int, float | None], **best: Any) -> Path:
    """A run with a row per validation, and a best.json."""
    with (run / "stats.jsonl").open("a") as file:
        for images, figure in figures.items():
            file.write(json.dumps({"images": images, "validation/distance": figure}) + "\n")
    (run / "checkpoints").mkdir()
    content = {"checkpoint": "000000800", "name": "validation/distance", "score": 0.1234}
    content |= {"on": "32 held-out apples and 30 held-out oranges"} | best
    (run / "checkpoints" / "best.json").write_text(json.dumps(content))
    return run


def test_the_best_checkpoint_is_told_with_what_it_was_chosen_on(make_run: MakeRun) -> None:
    facts = read_run_data(_scored(make_run(), {400: 0.3, 600: None, 800: 0.1234, 1000: 0.2}))
    assert scores.describe_best_checkpoint(facts) == (
        "Best: checkpoint 2 of 3, at 800 images, lowest sliced Wasserstein distance (0.123) "
        "on 32 held-out apples and 30 held-out oranges."
    )
    assert facts.last_value("seconds") == 25.0


@pytest.mark.parametrize("best", [{"checkpoint": "000000900"}, {"score": None}, {"name": "other"}, {"checkpoint": 7}])
def test_a_best_checkpoint_that_the_log_does_not_know_is_not_told(best: dict[str, Any], make_run: MakeRun) -> None:
    assert scores.describe_best_checkpoint(read_run_data(_scored(make_run(), {800: 0.1234}, **best))) == ""
    assert scores.describe_best_checkpoint(read_run_data(make_run("without"))) == ""


def test_where_a_direction_leads(tmp_path: Path):
    (tmp_path / "run.json").write_text(json.dumps({"data": {"a": {"name": "apples"}, "b": {"name": "oranges"}}}))
    facts = read_run_data(tmp_path)
    ways = {"a2b": ("apples", "oranges"), "b2a": ("oranges", "apples"), "b2b": ("oranges", "oranges")}
    assert {way: facts.domain_names(way) for way in ways} == ways
