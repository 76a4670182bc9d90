"""The captured step's wiring, with a recorder that works on any device: it replays by running the work again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from velogan.data.config import DataConfig
from velogan.data.sets.loader import PairLoader, copy_to_device
from velogan.engine.capture import CapturedStep, Recorder
from velogan.engine.duration import parse_length, parse_span
from velogan.engine.ema import EMA
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.optimizers import OptimizerConfig, build_optimizers, make_capturable
from velogan.engine.schedules import ScheduleConfig
from velogan.engine.step import Step, StepOptions
from velogan.engine.trainer import Hook, Trainer
from velogan.methods.cyclegan import CycleGAN, CycleGANObjective
from velogan.networks.discriminators import DiscriminatorConfig, build_discriminator
from velogan.networks.generators import GeneratorConfig, build_generator
from velogan.store.checkpoint import load_state, save_checkpoint

from ..domains import domain_in_memory

SIDE, EPOCH = 16, 4


class Again:
    """Runs the work a few times, and at every replay once more into the first tensors."""

    def __init__(self):
        self.recordings = 0

    def __call__(self, work: Callable[[], dict[str, Tensor]]) -> tuple[dict[str, Tensor], Callable[[], None]]:
        self.recordings += 1
        losses = [work() for _ in range(3)][-1]

        def replay() -> None:
            for name, value in work().items():
                losses[name].copy_(value)

        return losses, replay


def _loader(*, resident: bool) -> PairLoader:
    """Pictures to be cropped and flipped; with `resident`, as on a GPU, out of the device's memory."""
    random = np.random.default_rng(0)
    a, b = (domain_in_memory([random.integers(0, 256, (20, 20, 3), np.uint8) for _ in range(EPOCH)]) for _ in range(2))
    loader = PairLoader(a, b, DataConfig(crop_size=SIDE, load_size=20), seed=0, device="cpu")
    if resident:
        loader.gpu_images["A"], loader.gpu_images["B"] = (copy_to_device(domain, loader.device) for domain in (a, b))
    return loader


def _batch(position: int) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(position)
    return {side: torch.rand(1, 3, SIDE, SIDE, generator=random) * 2 - 1 for side in "AB"}


def _step(
    prepare: dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] | None = None, rules: tuple[str, ...] = ()
) -> tuple[Step, CycleGANObjective, dict[str, nn.Module]]:
    """A small game with dropout, batch norm's buffers and a pool."""
    torch.manual_seed(0)
    generator = GeneratorConfig(channels=2, blocks=1, dropout=True)
    discriminator = DiscriminatorConfig(network="pixel", channels=2, norm="batch")
    nets: dict[str, nn.Module] = {role: build_generator(generator) for role in ("G_A", "G_B")}
    nets |= {role: build_discriminator(discriminator) for role in ("D_A", "D_B")}
    objective = CycleGANObjective(CycleGAN(pool_size=2), {"A": (3, SIDE, SIDE), "B": (3, SIDE, SIDE)})
    phases = objective.phases()
    optimizers = build_optimizers(OptimizerConfig(rules=rules), phases=phases, nets=nets, fused=True)
    options = StepOptions(channels_last=True, defer_nonfinite_check=True)
    step = Step(phases, nets=nets, optimizers=optimizers, prepare=prepare, options=options)
    return step, objective, nets


def _captured(rules: tuple[str, ...] = ()) -> tuple[CapturedStep, dict[str, nn.Module], Again]:
    (step, objective, nets), recorder = _step(rules=rules), Again()
    return CapturedStep(step, state=objective.state, recorder=recorder), nets, recorder


def _trainer(*, captured: bool, recorder: Recorder | None = None, rules: tuple[str, ...] = ()) -> Trainer:
    loader = _loader(resident=captured)
    step, objective, nets = _step({"train": loader.preprocess_on_device}, rules)
    if not captured:
        make_capturable(step.optimizers)  # learning rates of the same type
    return Trainer(
        CapturedStep(step, state=objective.state, recorder=recorder or Again()) if captured else step,
        {"train": loader},
        ema=EMA({"G_A": nets["G_A"]}, half_life=10, rampup=0.05),
        objective=objective,
        schedule=ScheduleConfig(kind="step", gamma=0.5, every="1 epochs"),
        batch_size=1,
        seed=0,
    )


def _run(trainer: Trainer, *, stop: int = 24) -> list[dict[str, float]]:
    """Trains six epochs or to `stop`, at a rate that falls with each epoch; the mean losses of every two steps."""
    rows: list[dict[str, float]] = []

    def look(images: int) -> None:
        trainer.stop_requested = images == stop

    hooks = [
        Hook(parse_span("1 images"), look),
        Hook(parse_span("2 images"), lambda _: rows.append(trainer.stats.tick())),
    ]
    trainer.run(parse_length("6 epochs", images_per_epoch=EPOCH), hooks=hooks)
    return rows


def _equal(one: Trainer, other: Trainer) -> bool:
    pairs = zip(_values(one), _values(other), strict=True)
    return all(torch.equal(mine, theirs) for mine, theirs in pairs)


def _values(trainer: Trainer) -> list[Tensor]:
    nets = [*trainer.nets.values(), *trainer.ema.nets.values(), trainer.state]
    moments = [m for o in trainer.step.optimizers.values() for state in o.state.values() for m in state.values()]
    return [value for net in nets for value in net.state_dict().values()] + moments


RULES = (
    "G_A:kind=sgd,momentum=0.9,lr=0.01,clip_norm=0.1,warmup=5 images",
    "D_A:kind=adamw,weight_decay=0.1,clip_norm=0.01,schedule=exponential,every=3 images",
)


@pytest.mark.parametrize("rules", [(), RULES])
def test_captured_steps_equal_plain_ones_bit_for_bit(rules: tuple[str, ...]):
    plain, captured = (_trainer(captured=captured, rules=rules) for captured in (False, True))
    start = [value.clone() for value in captured.nets["G_A"].parameters()]
    assert _run(captured) == _run(plain)
    assert _equal(captured, plain)
    assert not any(torch.equal(before, now) for before, now in zip(start, captured.nets["G_A"].parameters()))


@pytest.fixture(scope="module")
def unbroken() -> Trainer:
    """A captured run of six epochs."""
    torch.set_num_threads(1)
    trainer = _trainer(captured=True)
    _run(trainer)
    return trainer


@pytest.mark.parametrize(
    ("before", "then", "after"), [(True, True, 4), (True, True, 5), (False, True, 4), (True, False, 5)]
)
def test_a_run_continues_bit_for_bit_captured_or_not(
    before: bool, then: bool, after: int, unbroken: Trainer, tmp_path: Path
):
    first, second = _trainer(captured=before), _trainer(captured=then)
    _run(first, stop=after)
    nets = {role: net.state_dict() for role, net in first.nets.items()}
    folder = save_checkpoint(
        tmp_path, images=after, networks={}, headers={}, state=first.state_dict(), clock=first.clock.state_dict()
    )
    second.load_state_dict(load_state(folder)[0])
    for role, net in second.nets.items():
        net.load_state_dict(nets[role])
    second.ema.nets["G_A"].load_state_dict(first.ema.nets["G_A"].state_dict())
    _run(second)
    assert _equal(second, unbroken)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (
            {"A": torch.zeros(1, 3, SIDE, 2 * SIDE)},
            r"but A \(1, 3, 16, 16\) float32, .* followed by A \(1, 3, 16, 32\)",
        ),
        ({"B": torch.zeros(1, 3, SIDE, SIDE, dtype=torch.float64)}, r"B \(1, 3, 16, 16\) float32.* float64"),
        ({"mask": torch.zeros(1)}, r"followed by .* mask \(1,\) float32"),
    ],
)
def test_a_batch_of_another_shape_or_type_is_refused(changed: dict[str, Tensor], named: str):
    step, nets, _ = _captured()
    batch = _batch(0) | {"uniform": torch.rand(6, 1)}
    step({"train": batch})
    weights = [value.clone() for value in nets["G_A"].parameters()]
    with pytest.raises(ValueError, match=rf"a captured step .*{named}.*: set engine.mode=eager"):
        step({"train": batch | changed}, number=1)
    assert all(torch.equal(before, now) for before, now in zip(weights, nets["G_A"].parameters()))


@pytest.mark.parametrize("rules", [(), RULES])
def test_a_break_within_a_replay_is_found_later_with_its_step_and_stops_updates(rules: tuple[str, ...]):
    step, nets, _ = _captured(rules)
    good = _batch(0) | {"uniform": torch.rand(6, 1)}
    bad = good | {"A": torch.full_like(good["A"], float("nan"))}
    for number, batch in enumerate([good, good, good, bad, good]):
        if number == 3:
            step.check()
            weights = [value.clone() for value in nets["G_A"].parameters()]
        step({"train": dict(batch)}, number=number)
    with pytest.raises(NonFiniteError) as caught:
        step.check()
    assert (caught.value.phase, caught.value.number) == ("generator", 3)
    assert {"cycle_a", "total"} <= set(caught.value.names)
    assert all(torch.equal(before, now) for before, now in zip(weights, nets["G_A"].parameters()))


class _Operations(TorchDispatchMode):
    """Records the names of all operations."""

    def __init__(self):
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


class _Silent(Again):
    """Its replays do nothing."""

    def __call__(self, work: Callable[[], dict[str, Tensor]]) -> tuple[dict[str, Tensor], Callable[[], None]]:
        return super().__call__(work)[0], lambda: None


@pytest.mark.parametrize("rules", [(), RULES])
def test_beside_the_replay_a_step_of_training_draws_and_copies_and_computes_nothing(rules: tuple[str, ...]):
    trainer = _trainer(captured=True, recorder=_Silent(), rules=rules)
    batches = trainer.loaders["train"].batches(0)
    for _ in range(EMA.EVERY):  # records what there is to record
        trainer._train_step({"train": next(batches)})
    with _Operations() as operations:
        for _ in range(EMA.EVERY):
            trainer._train_step({"train": next(batches)})
    batches.close()
    assert operations.seen == {"rand", "slice", "copy_", "fill_"}


class _NoWaiting(TorchDispatchMode):
    """Refuses what would bring a number from the device to the host."""

    WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "_unique2")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in self.WAITS
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rules", [(), RULES])
def test_nothing_of_a_replay_waits_for_the_device(rules: tuple[str, ...]):
    step, _, _ = _captured(rules)
    for number in (0, 1):
        step({"train": _batch(0) | {"uniform": torch.rand(6, 1)}}, number=number)
    batch = _batch(1) | {"uniform": torch.rand(6, 1)}
    with _NoWaiting():
        for number in (2, 3):
            step({"train": dict(batch)}, number=number)
    with pytest.raises(AssertionError), _NoWaiting():
        step.check()


def test_a_step_without_check_later_cannot_be_captured():
    step, objective, nets = _step()
    waiting = Step(step.phases, nets=nets, optimizers=step.optimizers)
    with pytest.raises(AssertionError):
        CapturedStep(waiting, state=objective.state, recorder=Again())
