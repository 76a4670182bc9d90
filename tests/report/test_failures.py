from __future__ import annotations

from typing import Any

import pytest

from velogan.report.failures import failures


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
def test_a_failure_is_told_while_it_lasts(values: tuple[float | None, ...], since: int | None) -> None:
    found = failures(log("failure/correlation_b2a", *values))
    assert [one.since for one in found] == ([] if since is None else [since])
    if found:
        assert found[0].what.startswith("b2a: colours are inverted")
        assert found[0].mend


def test_a_discriminator_wins_when_little_is_left_of_its_first_loss() -> None:
    (found,) = failures(log("loss/discriminator/a", 0.5, 0.2, 0.01, 0.02))
    assert (found.since, found.value) == (30, 0.02)
    assert "discriminator A" in found.what
    assert failures(log("loss/discriminator/a", 0.5, 0.2, 0.2, 0.2)) == []
    assert failures(log("loss/discriminator/total", 0.5, 0.01, 0.01)) == []
    assert failures(log("loss/discriminator/a", 5.0, -3.0, 0.0, 0.0)) == []  # a critic's loss has no level


def test_unknown_signs_and_torn_rows_are_passed_over() -> None:
    assert failures([*log("failure/later_a2b", 1.0, 1.0), {"failure/correlation_a2b": "x"}, {}]) == []
