"""Runs in minutes, by a clock that the test plays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.test_trainer import build_trainer
from velogan.engine.allowance import SHARE, Allowance
from velogan.engine.duration import parse_length, parse_span
from velogan.engine.trainer import Hook, Trainer
from velogan.observe.clock import Clock


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
        self.trainer.run(parse_length(length, epoch=self.trainer.epoch), hooks=hooks)
        return self.trainer

    def times(self, name: str) -> list[float]:
        return [at for called, at in self.called if called == name]


def test_a_run_in_minutes_ends_in_them_with_all_its_calls() -> None:
    play = _Play()
    score = Hook(parse_span("10 %"), play.calls("score", 5), dear=True)
    trainer = play.run("10 minutes", score, Hook(parse_span("5 %"), play.calls("grid", 1), dear=True))
    assert play.now == pytest.approx(600, abs=1)
    assert 5 < len(play.times("score")) < 10
    assert 0.8 * SHARE * 600 < 5 * len(play.times("score")) + len(play.times("grid")) <= SHARE * 600
    assert trainer.clock_state()["seconds"] == 600


def test_dear_calls_come_seldom_and_cheap_ones_always() -> None:
    play = _Play()
    score = Hook(parse_span("10 %"), play.calls("score", 20), dear=True, seconds=20)
    trainer = play.run("3 minutes", Hook(parse_span("10 %"), play.calls("log", 0)), score)
    assert play.times("score") == [160]
    assert play.now == 180
    assert trainer.put_off
    assert len(play.times("log")) == 10


def test_a_call_that_turns_out_dear_is_not_made_again_before_the_end() -> None:
    play = _Play()
    play.run("3 minutes", Hook(parse_span("10 %"), play.calls("score", 30), dear=True))
    assert play.times("score") == [18, 150]
    assert play.now == 180


def test_half_of_a_run_is_for_training() -> None:
    play = _Play()
    play.run("1 minutes", Hook(parse_span("10 %"), play.calls("score", 100), dear=True, seconds=100))
    assert play.times("score") == [30]


def test_rates_fall_to_the_end_of_the_training() -> None:
    play = _Play(kind="linear", hold=0.0)
    play.run("10 minutes", Hook(parse_span("50 %"), play.calls("score", 60), dear=True, seconds=60))
    assert len(play.rates) == 540
    assert play.rates[-1] < 0.01
    assert all(later <= before for before, later in zip(play.rates, play.rates[1:]))


def test_a_run_in_minutes_goes_on_by_its_clock() -> None:
    one = _Play()
    stop = Hook(parse_span("1 minutes"), lambda images: setattr(one.trainer, "stopping", True))
    kept = one.run("3 minutes", stop).clock_state()
    assert kept["seconds"] == pytest.approx(60, abs=1)
    other = _Play()
    other.trainer.load_state_dict(one.trainer.state_dict())
    other.trainer.clock.load_state_dict(kept)
    other.now = 1e6
    other.run("3 minutes", Hook(parse_span("50 %"), other.calls("score", 4), dear=True))
    assert other.now - 1e6 + kept["seconds"] == pytest.approx(180, abs=1)
    ended = other.trainer.clock_state()
    last = _Play()
    last.trainer.load_state_dict(other.trainer.state_dict())
    last.trainer.clock.load_state_dict(ended)
    last.run("3 minutes")
    assert last.now == 0


def test_a_run_whose_start_took_all_its_minutes_makes_one_step() -> None:
    play = _Play()
    play.trainer.clock.start(ago=90)
    play.run("1 minutes")
    assert play.trainer.images == 1


def test_images_are_counted_and_not_the_time_of_calls() -> None:
    play = _Play()
    trainer = play.run("100 images", Hook(parse_span("10 %"), play.calls("score", 1000), dear=True, seconds=1000))
    assert len(play.times("score")) == 10
    assert trainer.clock_state()["seconds"] == 100


def test_an_allowance_is_given_out_evenly() -> None:
    allowance = Allowance(100, [1, 2])
    assert allowance.kept == 3
    assert not allowance.affords(1, progress=0.2)
    assert allowance.affords(1, progress=0.3)
    allowance.took(1, 4)
    assert allowance.kept == 5
    assert not allowance.affords(0, progress=0.9)
    assert allowance.affords(0, progress=1)
