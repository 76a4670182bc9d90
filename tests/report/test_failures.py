from __future__ import annotations

from typing import Any

import pytest

from velogan.report.failures import describe_improvement, final_checkpoint_is_worse, find_failures


def log(name: str, *values: float | None) -> list[dict[str, Any]]:
    return [{"images": 10 * (number + 1), name: value} for number, value in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "since"),
    [
        ((0.5, -0.5, -0.6), 20),
        ((-0.5, 0.5, -0.6), None),  # once is not lasting
        ((-0.5, -0.5, 0.5), None),  # it has passed
        ((-0.5, None, -0.5), 10),
        ((), None),
    ],
)
def test_reports_a_failure_while_it_lasts(values: tuple[float | None, ...], since: int | None) -> None:
    failures = find_failures(log("failure/correlation_b2a", *values))
    assert [failure.since for failure in failures] == ([] if since is None else [since])
    if failures:
        assert failures[0].description.startswith("b2a: colours are inverted")
        assert failures[0].hint


def test_a_discriminator_wins_with_a_small_fraction_of_its_first_loss() -> None:
    (failure,) = find_failures(log("loss/discriminator/a", 0.5, 0.2, *[0.01] * 9, 0.02))
    assert (failure.since, failure.value) == (30, 0.02)
    assert find_failures(log("loss/discriminator/a", 0.5, 0.2, *[0.01] * 9)) == []  # single steps of a short run
    assert "discriminator D_A" in failure.description
    assert find_failures(log("loss/discriminator/a", 0.5, 0.2, 0.2, 0.2)) == []
    assert find_failures(log("loss/discriminator/a", 5.0, -3.0, *[0.0] * 10)) == []  # a critic's loss has no level


def test_reports_translations_that_became_worse() -> None:
    (failure,) = find_failures(log("validation/distance", 0.2, 0.1, 0.12, 0.16, 0.17))
    assert (failure.since, failure.value) == (40, 0.17)
    assert "0.170, and was 0.100 at 20 images" in failure.description
    assert "the best checkpoint, which translate uses" in failure.hint
    assert find_failures(log("validation/distance", 0.2, 0.1, 0.12, 0.16, 0.14)) == []


def test_reports_no_gain_over_the_unchanged_input_at_the_end() -> None:
    stats = [{**row, "validation/unchanged_input": 0.15} for row in log("validation/distance", 0.3, 0.2, 0.16)]
    assert find_failures(stats) == []
    stats[-1]["ended"] = True
    (failure,) = find_failures(stats)
    assert "closer to real images than the inputs are (0.160, unchanged input 0.150)" in failure.description
    assert find_failures([*stats[:-1], {**stats[-1], "validation/distance": 0.14}]) == []


def test_a_good_direction_does_not_hide_a_bad_one() -> None:
    stats = [
        {"images": 10 * number, "validation/distance": (a2b + 0.2) / 2, **UNCHANGED_IS_1}
        | {"validation/distance_a2b": a2b, "validation/distance_b2a": 0.2}
        for number, a2b in enumerate((0.9, 0.25, 0.3, 0.66))
    ]
    assert find_failures(stats) == []
    (failure,) = find_failures([*stats[:-1], {**stats[-1], "ended": True}])
    assert failure.description.startswith("a2b: translations have become worse")
    assert "is 0.660, and was 0.250 at 10 images" in failure.description
    assert [final_checkpoint_is_worse(stats[:count]) for count in (2, 3, 4)] == [False, False, True]


def test_describes_the_improvement_at_the_end() -> None:
    stats = [
        {"images": 10 * number, "validation/distance": both, **UNCHANGED_IS_1}
        | {"validation/distance_a2b": both - 0.1, "validation/distance_b2a": both + 0.1}
        for number, both in enumerate((0.9, 0.3, 0.6))
    ]
    assert describe_improvement(stats) is None  # it goes on
    stats[-1]["ended"] = True
    assert describe_improvement(stats) == (
        "translations of held-out images are 40% closer to real ones than their inputs are (a2b 50%, b2a 30%)"
    )
    retrieval = {"failure/retrieval_a2b": 0.991, "failure/retrieval_b2a": 0.58}
    text = describe_improvement([*stats[:-1], {**stats[-1], **retrieval}]) or ""
    assert text.endswith("; more like their own input than like another in a2b 99%, b2a 58% of comparisons")
    bad = [*stats[:-1], {**stats[-1], "validation/distance": 0.8}]
    assert final_checkpoint_is_worse(bad)
    assert "are 70% closer" in (describe_improvement(bad) or "")  # by the best checkpoint, which translate uses
    assert describe_improvement([{**stats[-1], "validation/distance": 1.1}]) is None
    assert describe_improvement([{**row, "validation/unchanged_input": None} for row in stats]) is None


UNCHANGED_IS_1 = dict.fromkeys(
    ("validation/unchanged_input", "validation/unchanged_input_a2b", "validation/unchanged_input_b2a"), 1.0
)
