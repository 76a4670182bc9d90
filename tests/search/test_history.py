from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from velogan.networks.cells import Kind, choices, generator_kinds
from velogan.search.history import Tick, entropy, kind, read_architecture, unchanged_since, warnings

Goal = Callable[[int, Kind], str]
"""The operation that wins at a place of some kind."""

NETWORK = "G_A"
KINDS = generator_kinds(9)


def search(goal: Goal, *, pace: Callable[[float], float] = lambda done: done, rows: int = 100) -> list[Tick]:
    """A search in which the winners' shares go from a like share to nearly 1; `pace` is how far they have come."""
    history = []
    for row in range(1, rows + 1):
        mixtures = {}
        for place, one in enumerate(KINDS):
            names = choices(one)
            rest = (1 - 0.98 * pace(row / 100)) / len(names)
            mixtures[f"model.{place}"] = dict.fromkeys(names, rest)
            mixtures[f"model.{place}"][goal(place, one)] = 1 - rest * (len(names) - 1)
        history.append(Tick(images=10 * row, shares={NETWORK: mixtures}))
    return history


def mixed(place: int, kind: Kind) -> str:
    """Another operation at every place."""
    return choices(kind)[place * 7 % len(choices(kind))]


def same(place: int, kind: Kind) -> str:
    return "conv7" if kind == "r" and place != 5 else mixed(place, kind)


def all_the_same(place: int, kind: Kind) -> str:
    return "conv7" if kind == "r" else mixed(place, kind)


def pooled(place: int, kind: Kind) -> str:
    return ("max_pool", "avg_pool")[place] if kind == "e" else mixed(place, kind)


def soon(done: float) -> float:
    """Decided after a tenth of the search."""
    return min(10 * done, 1)


@pytest.mark.parametrize(
    ("mixture", "expected"),
    [
        ({"a": 0.25, "b": 0.25, "c": 0.25, "d": 0.25}, 1),
        ({"a": 1.0, "b": 0.0}, 0),
        ({"a": 0.5, "b": 0.25, "c": 0.25}, 1.5 * math.log(2) / math.log(3)),
        ({"a": 1.0}, 0),
    ],
)
def test_entropy_is_that_of_shannon_over_its_maximum(mixture: dict[str, float], expected: float):
    assert entropy(mixture) == pytest.approx(expected, abs=1e-12)


def test_a_good_search_is_not_warned_of():
    assert warnings(search(mixed)) == []
    assert warnings(search(mixed, pace=soon)) == []


@pytest.mark.parametrize(
    ("goal", "pace", "parts"),
    [
        (pooled, soon, ("pooling", "e cells", "since 40 images", "arch_*")),
        (same, soon, ("conv7 has won nearly everywhere", "r cells", "since 40 images", "arch_*")),
        (all_the_same, lambda done: done, ("all 18 choices", "r cells", "conv7", "--budget")),
        (mixed, lambda done: 0.02 * done, ("nearly alike", "99.5%", "search longer", "arch_*:lr=1e-2")),
    ],
)
def test_each_failure_is_told_in_a_sentence(goal: Goal, pace: Callable[[float], float], parts: tuple[str, ...]):
    (sentence,) = warnings(search(goal, pace=pace))
    assert sentence.startswith(f"{NETWORK}: ")
    for part in parts:
        assert part in sentence


def test_a_sentence_stays_the_same_while_it_holds():
    history = search(pooled, pace=soon)
    assert warnings(history[:50], length=1000) == warnings(history) != []


def test_what_comes_late_is_no_collapse():
    assert warnings(search(pooled)) == []
    assert warnings(search(same)) == []


def test_little_is_said_too_soon():
    for goal, pace in ((pooled, soon), (same, soon), (mixed, lambda _: 0.0)):
        assert warnings(search(goal, pace=pace, rows=19)) == []
    undecided = search(mixed, pace=lambda _: 0.0, rows=40)
    assert warnings(undecided, length=1000) == []
    assert warnings(undecided)


def test_a_passing_collapse_is_forgotten():
    history = search(pooled, pace=soon)[:60] + [
        Tick(images=tick["images"], shares=tick["shares"]) for tick in search(mixed, pace=soon)[60:]
    ]
    assert warnings(history) == []


def test_the_last_change_of_a_choice_is_found():
    first, second = search(same)[:30], search(mixed)[30:]
    assert unchanged_since(first + second) == 310
    assert unchanged_since(first) == 10


def test_kinds_are_told_by_their_operations():
    for one in ("e", "r", "d"):
        for space in ("paper", "code"):
            assert kind(dict.fromkeys(choices(one, space), 0.1)) == one


def test_damaged_lines_are_left_out(tmp_path: Path):
    assert read_architecture(tmp_path) == []
    history = search(mixed, rows=3)
    good = [json.dumps(tick) for tick in history]
    other = json.dumps({"images": 5, "shares": {"G_A": {"model.0": {"conv3": 1.0}}}})
    broken = ['{"images": 5}', "[]", '{"images": 7, "shares": {"G_A": {}}}', good[0].replace("0.", "NaN,", 1), other]
    (tmp_path / "architecture.jsonl").write_text("\n".join([*broken, *good, good[0][:100]]))
    assert read_architecture(tmp_path) == history
