from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from velogan.report.sweep_page import write_sweep_page


def sweep_result(settings: dict[str, dict[str, Any]], *, seeds: int = 2, **changes: Any) -> dict[str, Any]:
    """Return the result of a sweep of `settings`, the best one first."""
    trials, verdicts = [], {}
    for number, (name, values) in enumerate(settings.items()):
        score = 0.25 + number / 10
        for seed in range(seeds):
            trial = {"name": f"{name},seed={seed}", "setting": name, "settings": values, "seed": seed, "status": "done"}
            trials.append(
                trial
                | {"reason": "", "score": score, "seconds": 60.0, "images": 500, "run": "/nowhere", "test_scores": None}
            )
        row = {"mean": score, "low": score - 0.01, "high": score + 0.01, "seeds": seeds, "difference": number / 10}
        verdicts[name] = row | {
            "interval_95": [0.01, 0.3] if number else None,
            "verdict": "differs" if number else "best",
            "over": "seeds" if number else None,
        }
    fields = list(next(iter(settings.values())))
    best = trials[0]["name"]
    result = {
        "budget": "500 images",
        "metric": "validation/distance",
        "search": "grid",
        "better": "lower",
    }
    result |= {"trials": trials, "verdicts": verdicts, "vary": fields, "best": best, "pictures": {}}
    result["unchanged_input"] = None
    return result | {"again": f"velogan train --config {best}"} | changes


@pytest.fixture
def page(tmp_path: Path) -> Callable[..., str]:
    def write(settings: dict[str, dict[str, Any]], **changes: Any) -> str:
        return write_sweep_page(sweep_result(settings, **changes), tmp_path / "sweep.html").read_text()

    return write


THREE = {f"lr={lr},kind=<b>&": {"optimizer.lr": lr, "method.kind": "<b>&", "data.flip": True} for lr in (1, 2)}
TWO = {f"lr={lr}": {"optimizer.lr": lr, "data.flip": True} for lr in (1, 2)}


def test_escapes_names(page: Callable[..., str]) -> None:
    html = page(THREE, budget="<b>& images", metric="validation/<b>&")
    assert "kind=<b>&" not in html
    assert "kind=&lt;b&gt;&amp;" in html
    assert "<b>& images" not in html
    assert "validation/<b>&" not in html


@pytest.mark.parametrize(("unchanged", "is_worse"), [(0.24, True), (0.3, False), (None, False)])
def test_compares_the_best_setting_with_the_unchanged_input(
    page: Callable[..., str], unchanged: float | None, is_worse: bool
) -> None:
    html = page(TWO, unchanged_input=unchanged)
    assert ("No setting is closer to real images than the unchanged input (0.2400)" in html) is is_worse
    assert (", of the unchanged input 0." in html) is (unchanged is not None)


def test_shows_the_metric_on_test_images(page: Callable[..., str]) -> None:
    """A PSNR is infinite, None in JSON, if nothing has changed."""
    result = sweep_result(TWO)
    for trial, distance, psnr in zip(result["trials"], (0.5, 0.7), (30.0, None)):
        trial["test_scores"] = {"sliced_wasserstein_a2b": distance, "sliced_wasserstein_b2a": 0.2}
        trial["test_scores"] |= {"psnr_object_db_a2b": psnr, "psnr_object_db_b2a": 20.0}
    trials = result["trials"]
    assert "<td>0.600 A → B<br>0.200 B → A</td>" in page(TWO, trials=trials)
    assert "<td>0.200 B → A</td>" in page(TWO, trials=trials, metric="validation/distance_b2a")
    psnr = page(TWO, trials=trials, metric="validation/psnr_object_db")
    assert "<td>unknown A → B<br>20.0 dB B → A</td>" in psnr


def test_reports_a_sweep_without_scores(page: Callable[..., str]) -> None:
    result = sweep_result(TWO, seeds=1)
    trials = [trial | {"status": "failed", "score": None, "reason": "no <pictures>"} for trial in result["trials"]]
    html = page(TWO, trials=trials, verdicts={}, best=None)
    assert "No finished run has a score" in html
    assert "no &lt;pictures&gt;" in html
    assert "Settings</h2>" not in html
