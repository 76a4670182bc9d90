from __future__ import annotations

import pytest

from velogan.observe.clock import Clock


class Now:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def running() -> tuple[Clock, Now]:
    now = Now()
    clock = Clock(now)
    clock.start()
    return clock, now


def test_it_stands_still_before_the_start() -> None:
    now = Now()
    clock = Clock(now)
    now.seconds += 7
    assert clock.seconds == 0
    clock.start()
    now.seconds += 2
    assert clock.seconds == 2


def test_seconds_survive_a_restart() -> None:
    clock, now = running()
    now.seconds += 12
    state = clock.state_dict()
    later, then = running()
    then.seconds += 1000
    later.load_state_dict(state)
    assert later.seconds == 12
    then.seconds += 3
    assert later.seconds == 15


def test_speed_is_that_of_the_last_tick_without_overhead() -> None:
    clock, now = running()
    assert clock.tick(500) == 0
    now.seconds += 2
    with clock.overhead():
        now.seconds += 100
    assert clock.tick(540) == 20
    now.seconds += 1
    assert clock.tick(580) == 40
    assert clock.tick(580) == 0
    assert (clock.seconds, clock.training_seconds) == (103, 3)


def test_eta_is_unknown_at_first_then_follows_the_speed() -> None:
    clock, now = running()
    clock.tick(0)
    assert clock.eta(100) is None
    now.seconds += 1
    clock.tick(10)
    assert clock.eta(100) == pytest.approx(10)
    now.seconds += 3
    clock.tick(20)
    assert clock.eta(100) == pytest.approx(20)


def test_it_may_start_as_of_some_seconds_ago() -> None:
    now = Now()
    clock = Clock(now)
    clock.load_state_dict({"seconds": 10})
    clock.start(elapsed=4)
    now.seconds += 1
    clock.start(elapsed=100)
    assert clock.seconds == 15
