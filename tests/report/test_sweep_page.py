from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from velogan.report.sweep_page import write_sweep_page
from velogan.report.sweep_tables import metric_label


def found(settings: dict[str, dict[str, Any]], *, seeds: int = 2, **changes: Any) -> dict[str, Any]:
    """What a sweep of `settings` found: the first is the best."""
    trials, verdicts = [], {}
    for number, (name, values) in enumerate(settings.items()):
        score = 0.25 + number / 10
        for seed in range(seeds):
            one = {"name": f"{name},seed={seed}", "setting": name, "settings": values, "seed": seed, "status": "done"}
            trials.append(one | {"reason": "", "score": score, "seconds": 60.0, "images": 500, "run": "/nowhere"})
        row = {"mean": score, "low": score - 0.01, "high": score + 0.01, "seeds": seeds, "difference": number / 10}
        verdicts[name] = row | {
            "interval_95": [0.01, 0.3] if number else None,
            "verdict": "differs" if number else "best",
            "over": "seeds" if number else None,
        }
    fields = list(next(iter(settings.values())))
    best = trials[0]["name"]
    facts = {
        "budget": "500 images",
        "metric": "validation/distance",
        "search": "grid",
        "load": [1.0, 2.0],
        "better": "lower",
    }
    facts |= {"trials": trials, "verdicts": verdicts, "vary": fields, "best": best, "pictures": {}}
    facts["nothing"] = None
    return facts | {"again": f"velogan train --config {best}"} | changes


@pytest.fixture
def page(tmp_path: Path) -> Callable[..., str]:
    def write(settings: dict[str, dict[str, Any]], **changes: Any) -> str:
        return write_sweep_page(found(settings, **changes), tmp_path / "sweep.html").read_text()

    return write


THREE = {f"lr={lr},kind=<b>&": {"optimizer.lr": lr, "method.kind": "<b>&", "data.flip": True} for lr in (1, 2)}
TWO = {f"lr={lr}": {"optimizer.lr": lr, "data.flip": True} for lr in (1, 2)}


def test_names_are_text_wherever_they_stand(page: Callable[..., str]) -> None:
    html = page(THREE, budget="<b>& images", metric="validation/<b>&")
    assert "kind=<b>&" not in html
    assert "kind=&lt;b&gt;&amp;" in html
    assert "<b>& images" not in html
    assert "validation/<b>&" not in html


@pytest.mark.parametrize(("nothing", "said"), [(0.24, True), (0.3, False), (None, False)])
def test_settings_that_are_all_worse_than_doing_nothing_are_said_to_be(
    page: Callable[..., str], nothing: float | None, said: bool
) -> None:
    html = page(TWO, nothing=nothing)
    assert ("No setting is closer to real images than the unchanged input (0.2400)" in html) is said
    assert ("Unchanged input: " in html) is (nothing is not None)


def test_the_page_says_what_the_interval_holds_and_which_end_is_better(page: Callable[..., str]) -> None:
    seeds = page(TWO)
    assert "a bootstrap over seeds (10,000 resamples); it does not include the choice of images" in seeds
    assert "lower is better" in seeds
    pictures = found(TWO)["verdicts"]
    pictures["lr=2"]["over"] = "seeds and pictures"
    both = page(TWO, verdicts=pictures)
    assert "a bootstrap over seeds and pictures (10,000 resamples). " in both
    assert "<td>0.100 <small>0.0100 to 0.300</small></td>" in both

    verdicts = found(TWO)["verdicts"]
    verdicts["lr=2"] |= {"difference": -0.1, "interval_95": [-0.3, -0.01], "over": "seeds and pictures"}
    higher = page(TWO, verdicts=verdicts, better="higher")
    assert "<b>lr=1</b> has the highest Patch" in higher
    assert "<td>0.100 <small>0.0100 to 0.300</small></td>" in higher
    assert "a bootstrap over seeds and pictures (10,000 resamples). " in higher


def test_test_figures_stand_beside_the_chosen_setting(page: Callable[..., str]) -> None:
    facts = found(TWO)
    for one, value in zip(facts["trials"][:2], (0.5, 0.7)):
        one["test_scores"] = {
            "psnr_object_db_a2b": 20.0,
            "sliced_wasserstein_a2b": value,
            "sliced_wasserstein_b2a": 0.2,
        }
    html = page(TWO, trials=facts["trials"])
    assert "<td>0.600 A → B<br>0.200 B → A</td>" in html


def test_a_test_figure_that_is_not_finite_in_one_run_is_unknown(page: Callable[..., str]) -> None:
    """A PSNR has no value in JSON where nothing has changed."""
    facts = found(TWO)
    for one, value in zip(facts["trials"][:2], (30.0, None)):
        one["test_scores"] = {"psnr_object_db_a2b": value, "psnr_object_db_b2a": 20.0}
    html = page(TWO, trials=facts["trials"])
    assert "<td>unknown A → B<br>20.0 dB B → A</td>" in html


def test_a_sweep_without_scores_says_so(page: Callable[..., str]) -> None:
    facts = found(TWO, seeds=1)
    trials = [one | {"status": "failed", "score": None, "reason": "no <pictures>"} for one in facts["trials"]]
    html = page(TWO, trials=trials, verdicts={}, best=None)
    assert "No finished run has a score" in html
    assert "no &lt;pictures&gt;" in html
    assert "Settings</h2>" not in html


def test_figures_have_names_for_people() -> None:
    assert metric_label("validation/distance") == "Patch distance"
    assert metric_label("validation/distance_b2a") == "Patch distance, B → A"
    assert metric_label("validation/cycle_a") == "Difference of A after the cycle"
