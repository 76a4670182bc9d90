"""Runs in minutes, by a simulated clock."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from tests.engine.test_trainer import build_trainer
from velogan.engine.duration import Span, parse_length, parse_span
from velogan.engine.trainer import Hook, Trainer
from velogan.observe.clock import Clock

QUARTER = parse_span("25 %")


class _Run:
    """A trainer whose steps take a second of a simulated clock; hooks take the seconds that they are given."""

    def __init__(self, **schedule: Any):
        self.now, self.rates = 0.0, []
        self.called: defaultdict[str, list[float]] = defaultdict(list)  # the times of the calls of each hook
        self.trainer = build_trainer(**schedule)
        self.trainer.clock = Clock(lambda: self.now)
        step = self.trainer.step
        base: Any = type(step)

        class Timed(base):
            def __call__(_, *args: Any, **options: Any) -> Any:
                self.now += 1
                self.rates.append(step.optimizers["generator"].param_groups[0]["lr"])
                return step(*args, **options)

        self.trainer.step = Timed()

    def hook(self, name: str, seconds: float, every: Span = QUARTER) -> Hook:
        def call(images: int) -> None:
            self.called[name].append(self.now)
            self.now += seconds

        return Hook(every, call)

    def train(self, length: str, *hooks: Hook) -> Trainer:
        self.trainer.run(parse_length(length, images_per_epoch=self.trainer.images_per_epoch), hooks=hooks)
        return self.trainer


def test_a_run_in_minutes_ends_at_its_deadline_after_its_last_hooks() -> None:
    run = _Run()
    run.train("10 minutes", run.hook("score", 20), run.hook("grid", 1))
    assert run.now == pytest.approx(600, abs=1)
    assert len(run.called["score"]) == len(run.called["grid"]) == 4
    assert run.called["score"][0] == 150
    assert run.called["score"][-1] == pytest.approx(579, abs=1)
    run.trainer.clock.load_state_dict({"seconds": 579})  # as when the last checkpoint is written
    assert run.trainer.clock_state()["seconds"] == 600


@pytest.mark.parametrize(("hook_s", "end"), [(10, 60), (30, 76)])
def test_expensive_hooks_leave_half_of_a_run_or_delay_its_end_by_one_call(hook_s: float, end: float) -> None:
    run = _Run()
    run.train("1 minutes", run.hook("score", hook_s))
    assert run.trainer.clock_state()["seconds"] == pytest.approx(end, abs=1)
    assert run.trainer.images >= (30 if hook_s == 10 else 15)
    assert hook_s == 10 or run.called["score"] == [15, 46]


def test_rates_decay_to_the_end_of_the_training() -> None:
    run = _Run(kind="linear", hold=0.0)
    run.train("10 minutes", run.hook("score", 20))
    assert len(run.rates) == pytest.approx(520, abs=1)
    assert run.rates[-1] < 0.01
    assert all(later <= before for before, later in zip(run.rates, run.rates[1:]))


def test_a_run_in_minutes_resumes_by_its_clock() -> None:
    first, second, finished = _Run(), _Run(), _Run()
    stop = Hook(parse_span("2.5 minutes"), lambda _: setattr(first.trainer, "stop_requested", True))
    first.train("3 minutes", stop, first.hook("score", 4))
    second.trainer.load_state_dict(first.trainer.state_dict())
    second.trainer.clock.load_state_dict(clock := first.trainer.clock.state_dict())
    second.train("3 minutes", second.hook("score", 4))
    assert len(second.called["score"]) == 1
    assert second.now + clock["seconds"] == pytest.approx(180, abs=1)
    finished.trainer.load_state_dict(second.trainer.state_dict())
    finished.trainer.clock.load_state_dict({"seconds": 176})  # as it was when the last checkpoint was written
    finished.train("3 minutes")
    assert finished.now == 0


def test_a_run_in_images_does_not_count_the_time_of_hooks() -> None:
    run = _Run()
    trainer = run.train("100 images", run.hook("score", 1000, parse_span("10 %")))
    assert len(run.called["score"]) == 10
    assert (trainer.clock.training_seconds, trainer.clock.seconds) == (100, 10_100)
