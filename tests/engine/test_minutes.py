"""Runs in minutes, by a clock that the test plays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.test_trainer import build_trainer
from velogan.engine.duration import parse_length, parse_span
from velogan.engine.trainer import Hook, Trainer
from velogan.observe.clock import Clock

QUARTER = parse_span("25 %")


class _Play:
    """A trainer whose steps take a second of the played time, and calls that take what they are told to."""

    def __init__(self, **schedule: Any):
        self.now, self.called, self.rates = 0.0, [], []
        self.trainer = build_trainer(**schedule)
        self.trainer.clock = Clock(lambda: self.now)
        step = self.trainer.step

        def timed(*given: Any, **named: Any) -> Any:
            self.now += 1
            self.rates.append(step.optimizers["generator"].param_groups[0]["lr"])
            return step(*given, **named)

        class Timed:
            optimizers, scale = step.optimizers, None
            __call__ = staticmethod(timed)
            check = staticmethod(lambda: None)

        self.trainer.step = Timed()  # pyright: ignore[reportAttributeAccessIssue]

    def calls(self, name: str, seconds: float) -> Callable[[int], None]:
        def call(images: int) -> None:
            self.called.append((name, self.now))
            self.now += seconds

        return call

    def run(self, length: str, *hooks: Hook) -> Trainer:
        self.trainer.run(parse_length(length, images_per_epoch=self.trainer.images_per_epoch), hooks=hooks)
        return self.trainer

    def times(self, name: str) -> list[float]:
        return [at for called, at in self.called if called == name]


def test_a_run_in_minutes_ends_in_them_with_all_its_calls() -> None:
    play = _Play()
    play.run("10 minutes", Hook(QUARTER, play.calls("score", 20)), Hook(QUARTER, play.calls("grid", 1)))
    assert play.now == pytest.approx(600, abs=1)
    assert len(play.times("score")) == len(play.times("grid")) == 4
    assert play.times("score")[0] == 150
    assert play.times("score")[-1] == pytest.approx(579, abs=1)
    play.trainer.clock.load_state_dict({"seconds": 579})  # as when the last checkpoint is written
    assert play.trainer.clock_state()["seconds"] == 600


def test_an_expensive_call_leaves_half_of_the_run_for_training() -> None:
    play = _Play()
    play.run("1 minutes", Hook(QUARTER, play.calls("score", 10)))
    assert play.now == pytest.approx(60, abs=1)
    assert play.trainer.images >= 30


def test_a_call_that_takes_longer_than_expected_delays_the_end_by_one_call() -> None:
    play = _Play()
    play.run("1 minutes", Hook(QUARTER, play.calls("score", 30)))
    assert play.times("score") == [15, 46]
    assert play.trainer.clock_state()["seconds"] == 76


def test_rates_fall_to_the_end_of_the_training() -> None:
    play = _Play(kind="linear", hold=0.0)
    play.run("10 minutes", Hook(QUARTER, play.calls("score", 20)))
    assert len(play.rates) == pytest.approx(520, abs=1)
    assert play.rates[-1] < 0.01
    assert all(later <= before for before, later in zip(play.rates, play.rates[1:]))


def test_a_run_in_minutes_goes_on_by_its_clock() -> None:
    one = _Play()
    stop = Hook(parse_span("2.5 minutes"), lambda _: setattr(one.trainer, "stop_requested", True))
    one.run("3 minutes", stop, Hook(QUARTER, one.calls("score", 4)))
    other = _Play()
    other.trainer.load_state_dict(one.trainer.state_dict())
    other.trainer.clock.load_state_dict(clock := one.trainer.clock.state_dict())
    other.run("3 minutes", Hook(QUARTER, other.calls("score", 4)))
    assert len(other.times("score")) == 1
    assert other.now + clock["seconds"] == pytest.approx(180, abs=1)
    last = _Play()
    last.trainer.load_state_dict(other.trainer.state_dict())
    last.trainer.clock.load_state_dict({"seconds": 176})  # as it stood when the last checkpoint was written
    last.run("3 minutes")
    assert last.now == 0


def test_a_run_whose_start_took_all_its_minutes_makes_one_step() -> None:
    play = _Play()
    play.trainer.clock.start(elapsed=90)
    play.run("1 minutes")
    assert play.trainer.images == 1


def test_intervals_of_checkpoints_are_quarters_of_a_run_in_minutes() -> None:
    assert parse_length("3 minutes", images_per_epoch=10).saving_interval("10 minutes") == QUARTER
    assert parse_length("3 images", images_per_epoch=10).saving_interval("10 minutes") == parse_span("10 minutes")


def test_images_are_counted_and_not_the_time_of_calls() -> None:
    play = _Play()
    trainer = play.run("100 images", Hook(parse_span("10 %"), play.calls("score", 1000)))
    assert len(play.times("score")) == 10
    assert (trainer.clock.training_seconds, trainer.clock.seconds) == (100, 10_100)
