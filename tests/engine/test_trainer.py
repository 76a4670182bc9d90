from __future__ import annotations

import os
import signal
from collections.abc import Generator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from velogan.engine import trainer as trainers
from velogan.engine.duration import parse_length, parse_span
from velogan.engine.ema import EMA
from velogan.engine.loss_scale import LossScale
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.schedules import ScheduleConfig
from velogan.engine.step import PostStepHook
from velogan.engine.trainer import Hook, Trainer, step_seed, stop_on_signal


class _Loader:
    """Loads batches filled with their position; an epoch is ten images."""

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
    """Records its calls; its loss is the position of the batch."""

    def __init__(self):
        self.nets: Mapping[str, nn.Module] = {"G_A": nn.Linear(1, 1)}
        group = {"params": [nn.Parameter(torch.zeros(2))], "name": "G_A", "initial_lr": 1.0, "schedule": {}}
        self.optimizers: Mapping[str, torch.optim.Optimizer] = {"generator": torch.optim.Adam([group])}
        self.scale: LossScale | None = None
        self.calls: list[SimpleNamespace] = []
        self.nonfinite_at: int | None = None
        self.deferred_error: NonFiniteError | None = None

    def __call__(
        self, batches: Any, *, number: int = 0, post_step_hooks: Sequence[PostStepHook] = ()
    ) -> dict[str, Tensor]:
        batch = batches["train"]
        position = float(batch["A"][0, 0, 0, 0])
        lr = self.optimizers["generator"].param_groups[0]["lr"]
        call = SimpleNamespace(position=position, number=number, uniform=batch["uniform"], lr=lr, drawn=torch.rand(1))
        self.calls.append(call)
        if number == self.nonfinite_at:
            raise NonFiniteError("generator", ["total"], number=number)
        losses = {"generator/adversarial": torch.tensor(0.0), "generator/total": torch.tensor(position)}
        for hook in post_step_hooks:
            hook.on_step_end(losses)
        return losses

    def check(self) -> None:
        if self.deferred_error is not None:
            raise self.deferred_error


def build_trainer(size: int = 1, **schedule: Any) -> Trainer:
    step = _Step()
    objective: Any = SimpleNamespace(state=nn.Module(), num_uniforms={"train": 6})
    return Trainer(
        step,
        {"train": _Loader(size)},
        ema=EMA(step.nets, half_life=10, rampup=0.05),
        objective=objective,
        schedule=ScheduleConfig.model_validate({"kind": "constant"} | schedule),
        images_per_step=size,
        seed=3,
    )


def _run(trainer: Trainer, length: str, hooks: list[Hook]) -> None:
    trainer.run(parse_length(length, images_per_epoch=trainer.images_per_epoch), hooks=hooks)


def test_hooks_are_called_by_interval_and_at_the_end():
    trainer, images = build_trainer(size=2), {"6 images": [], "50 %": [], "1.2 epochs": [], "99 minutes": []}
    _run(trainer, "26 images", [Hook(parse_span(every), images[every].append) for every in images])
    assert list(images.values()) == [[6, 12, 18, 24, 26], [14, 26], [12, 24, 26], [26]]


def test_each_step_gets_its_batch_its_number_and_its_own_randomness():
    trainer = build_trainer(size=2)
    _run(trainer, "8 images", [])
    calls = trainer.step.calls  # pyright: ignore
    assert [(call.position, call.number) for call in calls] == [(0, 0), (2, 1), (4, 2), (6, 3)]
    assert all(call.uniform.shape == (6, 2) for call in calls)
    torch.manual_seed(step_seed(3, 4))
    assert torch.equal(calls[2].uniform, torch.rand(6, 2))
    assert torch.equal(calls[2].drawn, torch.rand(1))  # dropout continues the same stream
    assert trainer.loaders["train"].closed  # pyright: ignore


def test_a_stop_requested_within_a_hook_still_calls_the_last_hooks():
    trainer, saved = build_trainer(), []

    def stop(images: int) -> None:
        trainer.stop_requested = True

    _run(trainer, "100 images", [Hook(parse_span("5 images"), stop), Hook(parse_span("50 images"), saved.append)])
    assert saved == [trainer.images]


def test_a_finished_run_takes_no_step():
    trainer, called = build_trainer(), []
    trainer.images = 8
    _run(trainer, "8 images", [Hook(parse_span("1 images"), called.append)])
    assert trainer.images == 8
    assert not trainer.step.calls  # pyright: ignore
    assert called == []


def test_the_schedule_changes_the_rate_with_each_step_and_epoch():
    trainer = build_trainer(kind="step", gamma=0.5, every="1 epochs")
    trainer.run(parse_length("3 epochs", images_per_epoch=10))
    assert [call.lr for call in trainer.step.calls] == 10 * [1.0] + 10 * [0.5] + 10 * [0.25]  # pyright: ignore
    trainer = build_trainer(size=2, kind="exponential", gamma=0.5, every="10 images", warmup="50 %")
    _run(trainer, "16 images", [])
    expected = [min(images / 8, 1.0) * 0.5 ** (images / 10) for images in range(0, 16, 2)]
    assert [call.lr for call in trainer.step.calls] == pytest.approx(expected)  # pyright: ignore


def test_averages_are_updated_every_eighth_step_wherever_the_run_starts(monkeypatch: pytest.MonkeyPatch):
    trainer, decays, updates = build_trainer(size=2), [], []
    monkeypatch.setattr(trainer.ema, "set_decay", decays.append)
    monkeypatch.setattr(trainer.ema, "on_step_end", lambda losses: updates.append(trainer.images))
    trainer.images = 6
    _run(trainer, "50 images", [])
    assert decays == [16, 32, 48]
    assert updates == [14, 30, 46]  # within the step


def test_step_seeds_are_distinct_and_well_mixed():
    seeds = [step_seed(seed, images) for seed in range(20) for images in range(0, 5000, 5)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    changed = sum(bin(step_seed(0, n) ^ step_seed(0, n + 1)).count("1") for n in range(1000)) / 1000
    assert 30 < changed < 33  # of 63 bits, about half


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_step_finish_and_a_second_interrupts(number: signal.Signals, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trainers, "REPEATED_SIGNAL_S", -1.0)
    trainer = build_trainer()
    both = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(signum, signal.default_int_handler) for signum in both]  # a background job ignores SIGINT
    try:
        with stop_on_signal(trainer):
            os.kill(os.getpid(), number)
            assert trainer.stop_requested
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        for signum, handler in zip(both, before):
            signal.signal(signum, handler)


def test_a_non_finite_step_ends_the_run_before_any_hook():
    trainer, called = build_trainer(size=2), []
    trainer.step.nonfinite_at = 3  # pyright: ignore
    with pytest.raises(NonFiniteError) as caught:
        _run(trainer, "20 images", [Hook(parse_span("2 images"), called.append)])
    assert called == [2, 4, 6]
    assert str(caught.value) == "not a finite number in step 3 (6 images seen), phase generator: total"
    assert trainer.loaders["train"].closed  # pyright: ignore


@pytest.mark.parametrize("intervals", [("8 images",), ()])
def test_a_deferred_error_ends_the_run_before_any_hook_or_at_its_end(intervals: tuple[str, ...]):
    trainer, called = build_trainer(size=2), []
    trainer.step.deferred_error = NonFiniteError("generator", ["gradients"], number=1)  # pyright: ignore
    with pytest.raises(NonFiniteError) as caught:
        _run(trainer, "20 images", [Hook(parse_span(every), called.append) for every in intervals])
    assert (called, trainer.images, caught.value.images) == ([], 8 if intervals else 20, 2)
