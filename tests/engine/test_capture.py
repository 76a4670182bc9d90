"""The captured step's wiring, with a recorder that works on any device: it replays by running the work again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from velogan.data.config import DataConfig
from velogan.data.sets.loader import PairLoader, copy_to_device
from velogan.engine.capture import CapturedStep
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
RULES = (
    "G_A:kind=sgd,momentum=0.9,lr=0.01,clip_norm=0.1,warmup=5 images",
    "D_A:kind=adamw,weight_decay=0.1,clip_norm=0.01,schedule=exponential,every=3 images",
)


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
    images = {side: torch.rand(1, 3, SIDE, SIDE, generator=random) * 2 - 1 for side in "AB"}
    return images | {"uniform": torch.rand(6, 1, generator=random)}


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


@pytest.fixture(params=["default", "rules"])
def rules(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return RULES if request.param == "rules" else ()


@pytest.fixture
def captured(rules: tuple[str, ...], recorder: Any) -> CapturedStep:
    step, objective, _ = _step(rules=rules)
    return CapturedStep(step, state=objective.state, recorder=recorder)


def _trainer(recorder: Any = None, rules: tuple[str, ...] = ()) -> Trainer:
    """A trainer whose step is captured by `recorder`, or plain."""
    loader = _loader(resident=recorder is not None)
    step, objective, nets = _step({"train": loader.preprocess_on_device}, rules)
    if recorder is None:
        make_capturable(step.optimizers)  # learning rates of the same type
    return Trainer(
        CapturedStep(step, state=objective.state, recorder=recorder) if recorder else step,
        {"train": loader},
        ema=EMA({"G_A": nets["G_A"]}, half_life=10, rampup=0.05),
        objective=objective,
        schedule=ScheduleConfig(kind="step", gamma=0.5, every="1 epochs"),
        images_per_step=1,
        seed=0,
    )


def _run(trainer: Trainer, *, stop: int = 24) -> list[dict[str, float]]:
    """Trains six epochs or to `stop`, at a rate that falls with each epoch; the mean losses of every two steps."""
    rows: list[dict[str, float]] = []

    def request_stop(images: int) -> None:
        trainer.stop_requested = images == stop

    hooks = [
        Hook(parse_span("1 images"), request_stop),
        Hook(parse_span("2 images"), lambda _: rows.append(trainer.stats.tick())),
    ]
    trainer.run(parse_length("6 epochs", images_per_epoch=EPOCH), hooks=hooks)
    return rows


def _are_equal(*trainers: Trainer) -> bool:
    return all(torch.equal(*pair) for pair in zip(*map(_values, trainers), strict=True))


def _copies(nets: Iterable[nn.Module]) -> list[Tensor]:
    return [value.detach().clone() for net in nets for value in net.parameters()]


def _values(trainer: Trainer) -> list[Tensor]:
    nets = [*trainer.nets.values(), *trainer.ema.nets.values(), trainer.state]
    moments = [m for o in trainer.step.optimizers.values() for state in o.state.values() for m in state.values()]
    return [value for net in nets for value in net.state_dict().values()] + moments


def test_captured_steps_equal_plain_ones_bit_for_bit(rules: tuple[str, ...], recorder: Any):
    plain, captured = _trainer(rules=rules), _trainer(recorder, rules)
    start = _copies([captured.nets["G_A"]])
    assert _run(captured) == _run(plain)
    assert _are_equal(captured, plain)
    assert not any(torch.equal(before, now) for before, now in zip(start, captured.nets["G_A"].parameters()))


@pytest.mark.parametrize(
    ("first_captured", "second_captured", "stop"),
    [(True, True, 4), (True, True, 5), (False, True, 4), (True, False, 5)],
)
def test_a_run_resumes_bit_for_bit_captured_or_not(
    first_captured: bool, second_captured: bool, stop: int, recorder: Any, tmp_path: Path
):
    unbroken = _trainer(recorder)
    _run(unbroken)
    first, second = (_trainer(recorder if captured else None) for captured in (first_captured, second_captured))
    _run(first, stop=stop)
    nets = {role: net.state_dict() for role, net in first.nets.items()}
    folder = save_checkpoint(
        tmp_path, images=stop, networks={}, headers={}, state=first.state_dict(), clock=first.clock.state_dict()
    )
    second.load_state_dict(load_state(folder)[0])
    for role, net in second.nets.items():
        net.load_state_dict(nets[role])
    second.ema.nets["G_A"].load_state_dict(first.ema.nets["G_A"].state_dict())
    _run(second)
    assert _are_equal(second, unbroken)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"A": torch.zeros(1, 3, SIDE, 2 * SIDE)}, r"followed by A \(1, 3, 16, 32\)"),
        ({"mask": torch.zeros(1)}, r"followed by .* mask \(1,\) float32"),
    ],
)
@pytest.mark.parametrize("rules", [()])
def test_rejects_batches_of_other_shapes_or_types(changed: dict[str, Tensor], message: str, captured: CapturedStep):
    captured({"train": _batch(0)})
    weights = _copies(captured.nets.values())
    with pytest.raises(ValueError, match=rf"a captured step .*{message}.*: set engine.mode=eager"):
        captured({"train": _batch(0) | changed}, number=1)
    assert all(torch.equal(*pair) for pair in zip(weights, _copies(captured.nets.values())))


def test_a_non_finite_replay_is_reported_later_with_its_step_and_stops_updates(captured: CapturedStep):
    good = _batch(0)
    bad = good | {"A": torch.full_like(good["A"], float("nan"))}
    for number in range(3):
        captured({"train": dict(good)}, number=number)
    captured.check()
    weights = _copies(captured.nets.values())
    for number, batch in enumerate([bad, good], start=3):
        captured({"train": dict(batch)}, number=number)
    with pytest.raises(NonFiniteError) as caught:
        captured.check()
    assert (caught.value.phase, caught.value.number) == ("generator", 3)
    assert {"cycle_a", "total"} <= set(caught.value.names)
    assert all(torch.equal(*pair) for pair in zip(weights, _copies(captured.nets.values())))


class _Operations(TorchDispatchMode):
    """Records the names of all operations except views."""

    WAITING = frozenset(("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "_unique2"))
    """Those that bring a number from the device to the host."""

    def __init__(self):
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_no_operation_of_a_replay_waits_for_the_device(captured: CapturedStep):
    for number in (0, 1):
        captured({"train": _batch(0)}, number=number)
    with _Operations() as operations:
        captured({"train": _batch(1)}, number=2)
        assert not operations.names & _Operations.WAITING
        captured.check()
        assert operations.names & _Operations.WAITING


def test_a_step_beside_the_replay_draws_and_copies_and_computes_nothing(rules: tuple[str, ...], recorder: Any):
    def record_silently(work: Callable[[], dict[str, Tensor]]) -> tuple[dict[str, Tensor], Callable[[], None]]:
        return recorder(work)[0], lambda: None

    trainer = _trainer(record_silently, rules)
    batches = trainer.loaders["train"].batches(0)
    for _ in range(EMA.EVERY):  # records all that there is to record
        trainer._train_step({"train": next(batches)})
    with _Operations() as operations:
        for _ in range(EMA.EVERY):
            trainer._train_step({"train": next(batches)})
    batches.close()
    assert operations.names == {"rand", "copy_", "fill_"}
