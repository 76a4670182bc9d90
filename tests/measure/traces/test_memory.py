from __future__ import annotations

from dataclasses import replace

import pytest

from velogan.measure.traces.memory import Held, memory_timeline
from velogan.measure.traces.timeline import Allocation, Owner, Timeline

FORWARD = Owner("generator", "G_A", "forward")
BACKWARD = Owner("generator", "G_A", "backward")
UPDATE = Owner("generator", "optimizer", "update")
REST = Owner("", "rest", "")


def _timeline(*changes: tuple[float, int, int, Owner]) -> Timeline:
    """Two steps of 100 us, each one phase with its update 80 us into it."""
    allocations = [Allocation(time, address, size, place, on_device=False) for time, address, size, place in changes]
    return Timeline(
        device="cpu",
        window=(0, 200),
        steps=[(0, 100), (100, 200)],
        phases=[("generator", (10, 90)), ("generator", (110, 190))],
        updates=[(80, 85), (180, 185)],
        work=[],
        allocations=allocations,
    )


def _largest(found: dict) -> dict[tuple[str, str], int]:
    return {(one["category"], one["network"]): max(one["bytes"]) for one in found["series"]}


def test_memory_is_named_by_how_long_it_lives():
    timeline = _timeline(
        (105, 1, 7, REST),
        (120, 2, 100, FORWARD),
        (125, 3, 30, FORWARD),
        (130, 3, -30, FORWARD),
        (150, 4, 40, BACKWARD),
        (155, 5, 20, BACKWARD),
        (160, 2, -100, BACKWARD),
        (165, 5, -20, BACKWARD),
        (182, 6, 9, UPDATE),
        (184, 6, -9, UPDATE),
    )
    assert _largest(memory_timeline(timeline, {})) == {
        ("images", "rest"): 7,
        ("activations", "G_A"): 100,
        ("temporary", "G_A"): 30,
        ("gradients", "G_A"): 40,
        ("temporary", "optimizer"): 9,
    }


def test_the_peak_and_what_was_there_before():
    held = {50: Held("weights", "G_A", 1000)}
    timeline = _timeline((120, 1, 100, FORWARD), (150, 2, 40, BACKWARD), (155, 1, -100, BACKWARD))
    found = memory_timeline(timeline, held)
    assert found["peak"] == {"bytes": 1000 + 100 + 40, "microseconds": 150 - 100}
    assert found["microseconds"] == [0, 20, 50, 55]
    totals = [sum(moment) for moment in zip(*(one["bytes"] for one in found["series"]))]
    assert totals == [1000, 1100, 1140, 1040]


def test_only_the_last_step_is_shown_and_the_one_before_counts():
    timeline = _timeline((50, 1, 40, BACKWARD), (111, 1, -40, UPDATE), (150, 1, 40, BACKWARD), (199, 3, 5, REST))
    found = memory_timeline(timeline, {})
    assert found["microseconds"] == [0, 11, 50, 99]
    assert found["series"][0] == {"category": "gradients", "network": "G_A", "bytes": [40, 0, 40, 40]}


def test_many_moments_become_few_and_the_peak_stays():
    changes = [(110 + i / 100, i, 1, FORWARD) for i in range(1, 2000)]
    changes += [(135 + i / 100, i, -1, BACKWARD) for i in range(1, 2000)]
    found = memory_timeline(_timeline(*changes), {}, points=10)
    assert len(found["microseconds"]) <= 11
    assert found["peak"]["bytes"] == 1999


def test_memory_of_another_device_is_left_out():
    timeline = _timeline((120, 1, 100, FORWARD))
    with pytest.raises(ValueError, match="no allocations"):
        memory_timeline(replace(timeline, device="cuda"), {})
