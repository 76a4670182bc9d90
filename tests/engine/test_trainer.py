from __future__ import annotations

import os
import signal
from collections.abc import Generator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from velogan.engine.duration import parse_length, parse_span
from velogan.engine.ema import EMA
from velogan.engine.optimizers import Schedule, ScheduleConfig
from velogan.engine.trainer import Hook, Trainer, step_seed, stop_on_signal


class _Loader:
    """Batches that hold the position they were asked for; an epoch is ten images."""

    def __init__(self, size: int):
        self.size, self.closed = size, False

    def __len__(self) -> int:
        return 10

    def batches(self, position: int) -> Generator[dict[str, Tensor], None, None]:
        try:
            while True:
                yield {"A": torch.full((self.size, 3, 4, 4), float(position))}
                position += self.size
        finally:
            self.closed = True


class _Step:
    """Remembers what it was called with; its loss is the images seen."""

    def __init__(self):
        group = {"params": [nn.Parameter(torch.zeros(2))], "name": "G_A", "initial_lr": 1.0}
        self.optimizers: Mapping[str, torch.optim.Optimizer] = {"generator": torch.optim.Adam([group])}
        self.calls: list[SimpleNamespace] = []

    def __call__(self, batches: Any, *, number: int = 0) -> dict[str, Tensor]:
        batch = batches["train"]
        position = float(batch["A"][0, 0, 0, 0])
        lr = self.optimizers["generator"].param_groups[0]["lr"]
        call = SimpleNamespace(position=position, number=number, uniform=batch["uniform"], lr=lr, drawn=torch.rand(1))
        self.calls.append(call)
        return {"generator/adversarial": torch.tensor(0.0), "generator/total": torch.tensor(position)}


def _trainer(size: int = 1) -> Trainer:
    nets = {"G_A": nn.Linear(1, 1)}
    return Trainer(
        _Step(),
        _Loader(size),
        nets=nets,
        ema=EMA(nets, half_life=10),
        state=nn.Module(),
        draws=6,
        batch_size=size,
        seed=3,
        device=torch.device("cpu"),
    )


def _run(trainer: Trainer, length: str, hooks: list[Hook], **schedule: Any) -> Schedule:
    parsed = parse_length(length, epoch=len(trainer.loader))
    made = Schedule(ScheduleConfig.model_validate({"kind": "constant"} | schedule), epochs=parsed.ticks)
    trainer.run(parsed, schedule=made, hooks=hooks)
    return made


def test_hooks_are_called_by_interval_and_at_the_end():
    trainer, seen = _trainer(size=2), {"images": [], "percent": [], "epochs": [], "long": []}
    intervals = {"images": "6 images", "percent": "50 %", "epochs": "1.2 epochs", "long": "99 minutes"}
    _run(trainer, "26 images", [Hook(parse_span(text), seen[name].append) for name, text in intervals.items()])
    assert seen == {"images": [6, 12, 18, 24, 26], "percent": [14, 26], "epochs": [12, 24, 26], "long": [26]}


def test_the_clock_stands_still_in_hooks():
    trainer, gone = _trainer(), []

    def wait(images: int) -> None:
        before = trainer.clock.seconds
        while not gone or len(gone) < 1000:
            gone.append(images)
        assert trainer.clock.seconds == before

    _run(trainer, "1 images", [Hook(parse_span("1 images"), wait)])
    assert gone


def test_each_step_gets_its_batch_its_number_and_its_own_randomness():
    trainer = _trainer(size=2)
    _run(trainer, "8 images", [])
    calls = trainer.step.calls  # pyright: ignore
    assert [(call.position, call.number) for call in calls] == [(0, 0), (2, 1), (4, 2), (6, 3)]
    assert all(call.uniform.shape == (6, 2) for call in calls)
    torch.manual_seed(step_seed(3, 4))
    assert torch.equal(calls[2].uniform, torch.rand(6, 2))
    assert torch.equal(calls[2].drawn, torch.rand(1))  # dropout continues the same stream
    assert trainer.loader.closed  # pyright: ignore


def test_an_end_asked_for_within_a_hook_still_calls_the_last_hooks():
    trainer, saved = _trainer(), []

    def stop(images: int) -> None:
        trainer.stopping = True

    _run(trainer, "100 images", [Hook(parse_span("5 images"), stop), Hook(parse_span("50 images"), saved.append)])
    assert saved == [trainer.images]


def test_a_finished_run_takes_no_step():
    trainer, seen = _trainer(), []
    trainer.images = 8
    _run(trainer, "8 images", [Hook(parse_span("1 images"), seen.append)])
    assert trainer.images == 8
    assert not trainer.step.calls  # pyright: ignore
    assert seen == []


def test_the_schedule_gets_the_mean_loss_of_each_epoch():
    trainer, finished = _trainer(), []
    length = parse_length("3 epochs", epoch=10)
    schedule = Schedule(ScheduleConfig(kind="exponential", gamma=0.5), epochs=3)
    finish = schedule.finish_epoch
    schedule.finish_epoch = lambda loss: (finished.append(loss), finish(loss))[1]
    trainer.run(length, schedule=schedule)
    assert finished == [4.5, 14.5]  # the means of 0..9 and 10..19
    assert [call.lr for call in trainer.step.calls] == 10 * [1.0] + 10 * [0.5] + 10 * [0.25]  # pyright: ignore


def test_the_average_is_updated_every_eighth_step_wherever_the_run_began():
    trainer, updates = _trainer(size=2), []
    trainer.ema.update = lambda nets, *, images: updates.append(images)
    trainer.images = 6
    _run(trainer, "50 images", [])
    assert updates == [16, 32, 48]


def test_step_seeds_are_distinct_and_well_mixed():
    seeds = [step_seed(seed, images) for seed in range(20) for images in range(0, 5000, 5)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    ones = sum(bin(step_seed(0, n) ^ step_seed(0, n + 1)).count("1") for n in range(1000)) / 1000
    assert 30 < ones < 33  # of 63 bits, about half change


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_step_finish_and_a_second_one_is_ordinary(number: signal.Signals):
    trainer = _trainer()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with stop_on_signal(trainer):
            os.kill(os.getpid(), number)
            assert trainer.stopping
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)
