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


def test_reduces_long_logs_to_means() -> None:
    stats = [{"images": n, "loss": float(n % 2)} for n in range(2 * MAX_POINTS)]
    curves = mean_curves(stats)
    assert len(curves["images"]) == MAX_POINTS
    assert curves["images"][:2] == [0.5, 2.5]
    assert set(curves["loss"]) == {0.5}


def test_missing_values_are_gaps() -> None:
    rows = [
        {"images": 1},
        {"images": 2, "late": 5, "text": "x", "flag": True},
        {"images": 3, "late": float("nan")},
    ]
    assert mean_curves(rows) == {"images": [1, 2, 3], "late": [None, 5, None]}


def test_flattens_nested_fields() -> None:
    assert flatten({"a": {"b": {"c": 1}, "d": {}}, "e": [1]}) == {"a.b.c": 1, "a.d": {}, "e": [1]}


def test_returns_the_newest_finite_value(make_run: MakeRun) -> None:
    run = make_run()
    with (run / "stats.jsonl").open("a") as file:
        file.write('{"images": 1100, "seconds": null}\n')
    data = read_run_data(run)
    assert (data.images_seen, data.last_value("seconds"), data.last_value("absent")) == (1100, 25.0, None)


def test_without_a_log_samples_tell_the_images_seen(make_run: MakeRun) -> None:
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
def test_formats_values_with_units(name: str, value: float | None, text: str, score: MakeScore) -> None:
    assert scores.format_value(score(name), value) == text


@pytest.mark.parametrize("value", [-3.0, 0.0, 99.0])
def test_bars_hold_any_value(value: float, score: MakeScore) -> None:
    for name in ("psnr_object_db", "ssim_object", "other"):
        extreme = score(name, value, baseline=None)
        assert 0 <= scores.place_on_bar(extreme, [extreme]).value <= 1


def test_bars_of_a_metric_share_a_scale_with_the_best_on_the_right(score: MakeScore) -> None:
    distance = score("lite1_kid", 0.02, real=0.001, baseline=0.15, better="lower")
    bar = scores.place_on_bar(distance, [distance])
    assert 0 <= (bar.baseline or 0) < bar.value < (bar.real or 0) <= 1
    assert scores.improvement(distance) == pytest.approx(0.13)
    share = score("lite1_share_class_340", 0.4, real=0.9, baseline=0.0)
    assert scores.place_on_bar(share, [share]) == scores.Bar(value=0.4, baseline=0.0, real=0.9)
    both = [score("lite1_fid", value, baseline=None) for value in (10.0, 20.0)]
    low, high = (scores.place_on_bar(fid, both).value for fid in both)
    assert high == pytest.approx(2 * low)


def _with_best(run: Path, distances: dict[int, float | None], **best: Any) -> Path:
    """Add a row per validation, and best.json."""
    with (run / "stats.jsonl").open("a") as file:
        for images, distance in distances.items():
            file.write(json.dumps({"images": images, "validation/distance": distance}) + "\n")
    (run / "checkpoints").mkdir()
    content = {"checkpoint": "000000800", "name": "validation/distance", "score": 0.1234}
    content |= {"on": "32 held-out apples and 30 held-out oranges"} | best
    (run / "checkpoints" / "best.json").write_text(json.dumps(content))
    return run


def test_describes_the_best_checkpoint(make_run: MakeRun) -> None:
    data = read_run_data(_with_best(make_run(), {400: 0.3, 600: None, 800: 0.1234, 1000: 0.2}))
    assert scores.describe_best_checkpoint(data) == (
        "Best: checkpoint 2 of 3, at 800 images, lowest sliced Wasserstein distance (0.123) "
        "on 32 held-out apples and 30 held-out oranges."
    )


@pytest.mark.parametrize("best", [{"checkpoint": "000000900"}, {"score": None}, {"name": "other"}, {"checkpoint": 7}])
def test_omits_a_best_checkpoint_that_the_log_does_not_have(best: dict[str, Any], make_run: MakeRun) -> None:
    assert scores.describe_best_checkpoint(read_run_data(_with_best(make_run(), {800: 0.1234}, **best))) == ""
    assert scores.describe_best_checkpoint(read_run_data(make_run("without"))) == ""


def test_names_the_domains_of_directions(tmp_path: Path):
    (tmp_path / "run.json").write_text(json.dumps({"data": {"a": {"name": "apples"}, "b": {"name": "oranges"}}}))
    data = read_run_data(tmp_path)
    names = {"a2b": ("apples", "oranges"), "b2a": ("oranges", "apples"), "b2b": ("oranges", "oranges")}
    assert {direction: data.domain_names(direction) for direction in names} == names
