from __future__ import annotations

import copy
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from velogan.engine.duration import Span
from velogan.engine.optimizers import (
    OptimizerConfig,
    build_optimizers,
    load_optimizer_state,
    make_capturable,
    optimizer_state,
)
from velogan.engine.schedules import Schedule, ScheduleConfig
from velogan.objectives.base import LossOutput, Phase

ROLES = ("G_A", "G_B", "D_A", "D_B")


def _nothing(nets: Any, batch: Any, cache: Any) -> LossOutput:
    raise AssertionError


PHASES = [
    Phase(name="generator", trains=("G_A", "G_B"), loss=_nothing),
    Phase(name="discriminator", trains=("D_A", "D_B"), loss=_nothing),
]


def _nets() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {role: nn.Linear(5, 3) for role in ROLES}


def _build(
    config: OptimizerConfig, nets: dict[str, nn.Module] | None = None, *, fused: bool = False
) -> dict[str, torch.optim.Optimizer]:
    return build_optimizers(config, phases=PHASES, nets=nets or _nets(), fused=fused)


def _settings(config: OptimizerConfig) -> dict[str, dict[str, Any]]:
    """Return each network's parameter group with the kind of its optimizer."""
    optimizers = _build(config).values()
    return {group["name"]: group | {"kind": type(o).__name__} for o in optimizers for group in o.param_groups}


def test_first_matching_rule_wins():
    config = OptimizerConfig(rules=("D_A:lr=1e-4,beta2=0.9", "D_*:lr=5e-5", "*_A:beta1=0.9"))
    assert {name: (group["lr"], group["betas"]) for name, group in _settings(config).items()} == {
        "D_A": (1e-4, (0.5, 0.9)),
        "D_B": (5e-5, (0.5, 0.999)),
        "G_A": (2e-4, (0.9, 0.999)),
        "G_B": (2e-4, (0.5, 0.999)),
    }


def test_rules_change_every_setting():
    config = OptimizerConfig(
        weight_decay=0.1,
        rules=(
            "G_A: kind=adamw, lr=1e-3, weight_decay=0.2, clip_norm=1, schedule=exponential, gamma=0.9, every=50i",
            "G_B:kind=radam,clip_norm=0.5,warmup=5 %",
            "D_A:kind=sgd,momentum=0.9",
            "D_B:kind=rmsprop,beta2=0.99,momentum=0.3,epsilon=1e-7",
        ),
    )
    groups = _settings(config)
    assert [groups[name]["kind"] for name in ROLES] == ["AdamW", "RAdam", "SGD", "RMSprop"]
    assert [(groups[name]["lr"], groups[name]["weight_decay"]) for name in ROLES] == [(1e-3, 0.2), *[(2e-4, 0.1)] * 3]
    assert [groups[name]["clip_norm"] for name in ROLES] == [1.0, 0.5, None, None]
    assert groups["G_A"]["schedule"] == {"kind": "exponential", "gamma": 0.9, "every": "50 images"}
    assert groups["G_B"]["schedule"] == {"warmup": "5 percent"}
    assert groups["D_A"]["momentum"] == 0.9
    assert (groups["D_B"]["alpha"], groups["D_B"]["momentum"], groups["D_B"]["eps"]) == (0.99, 0.3, 1e-7)
    assert config.kinds == {"adam", "adamw", "radam", "sgd", "rmsprop"}


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("D_A:lr", " is not a rule: write NETWORK:lr=1e-4"),
        ("D_A:lr=-1", ": lr=-1: "),
        ("D_A:beta=0.9", ": there is no beta for a network; did you mean beta2?"),
        ("D_A:warmup=1000", ": warmup=1000: '1000' is not a duration"),
        ("D_A:lr=1e-4,lr=2e-4", ": a key is repeated"),
    ],
)
def test_rejects_invalid_rules(rule: str, reason: str):
    with pytest.raises(ValueError, match=re.escape(f"'{rule}'{reason}")):
        OptimizerConfig(rules=(rule,))


@pytest.mark.parametrize("rules", [("X_*:lr=1",), ("D_*:lr=1", "D_A:lr=2")])
def test_rejects_rules_that_change_no_network(rules: tuple[str, ...]):
    with pytest.raises(ValueError, match=re.escape(f"'{rules[-1]}' has no effect: it matches no trained network (G_A")):
        _build(OptimizerConfig(rules=rules))


def _update(nets: dict[str, nn.Module], optimizers: Iterable[torch.optim.Optimizer], number: int = 0) -> None:
    """Take a step on random images with this seed."""
    images = torch.randn(4, 5, generator=torch.Generator().manual_seed(number))
    for optimizer in optimizers:
        optimizer.zero_grad()
    sum(net(images).square().mean() for net in nets.values()).backward()  # pyright: ignore
    for optimizer in optimizers:
        optimizer.step()


def _pairs(nets: dict[str, nn.Module], others: dict[str, nn.Module]) -> list[tuple[Tensor, Tensor]]:
    return [pair for role in ROLES for pair in zip(nets[role].parameters(), others[role].parameters())]


KINDS: dict[str, tuple[str, Callable[..., torch.optim.Optimizer]]] = {
    "adam": ("adam", partial(torch.optim.Adam, lr=2e-4, betas=(0.5, 0.999))),
    "adam, L2": ("adam,weight_decay=0.1", partial(torch.optim.Adam, lr=2e-4, betas=(0.5, 0.999), weight_decay=0.1)),
    "adamw": ("adamw,weight_decay=0.1", partial(torch.optim.AdamW, lr=2e-4, betas=(0.5, 0.999), weight_decay=0.1)),
    "adam, as Keras": ("adam,epsilon=1e-7", partial(torch.optim.Adam, lr=2e-4, betas=(0.5, 0.999), eps=1e-7)),
    "radam": ("radam,beta1=0.9", partial(torch.optim.RAdam, lr=2e-4, betas=(0.9, 0.999))),
    "sgd": ("sgd,momentum=0.9,lr=0.1", partial(torch.optim.SGD, lr=0.1, momentum=0.9)),
    "rmsprop": ("rmsprop,beta2=0.9,lr=1e-3", partial(torch.optim.RMSprop, lr=1e-3, alpha=0.9)),
}


@pytest.mark.parametrize(
    ("kind", "fused"),
    [(kind, fused) for kind in KINDS for fused in (False, True) if not fused or kind not in ("radam", "rmsprop")],
)
def test_one_optimizer_of_several_groups_equals_separate_ones_bit_for_bit(kind: str, fused: bool):
    rule, make = KINDS[kind]
    if fused:
        make = partial(make, fused=True)
    start = _nets()
    nets, separate, joint = (copy.deepcopy(start) for _ in range(3))
    optimizers = _build(OptimizerConfig(rules=(f"*:kind={rule}",)), nets, fused=fused)
    single = [make(net.parameters()) for net in separate.values()]
    common = make([parameter for net in joint.values() for parameter in net.parameters()])
    for number in range(8):  # RAdam rectifies from the sixth on
        for group, its_optimizers in ((nets, optimizers.values()), (separate, single), (joint, [common])):
            _update(group, its_optimizers, number)
    assert all(torch.equal(*pair) for pair in _pairs(nets, separate) + _pairs(nets, joint))
    assert not any(torch.equal(*pair) for pair in _pairs(nets, start))


def test_rules_add_no_operations():
    counts = []
    for rules in ((), ("G_A:lr=1e-3", "G_B:beta1=0.9,weight_decay=0.1", "D_A:warmup=5i", "D_B:lr=1")):
        nets = _nets()
        optimizers = _build(OptimizerConfig(rules=rules), nets, fused=True).values()
        _update(nets, optimizers)
        with torch.profiler.profile() as profile:
            _update(nets, optimizers)
        counts.append(Counter(event.name for event in profile.events() or () if event.name.startswith("aten::")))
    assert counts[0]["aten::_fused_adam_"] == len(ROLES)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_are_clipped_by_the_norm_of_each_network(fused: bool):
    nets = _nets()
    config = OptimizerConfig(kind="sgd", lr=1.0, rules=("G_A:clip_norm=0.5", "D_A:clip_norm=0.1"))
    optimizers = _build(config, nets, fused=fused)
    before = copy.deepcopy(nets)
    _update(nets, [])  # leaves gradients
    gradients = {role: _flat(parameter.grad for parameter in nets[role].parameters()) for role in ROLES}
    for optimizer in optimizers.values():
        optimizer.step()
    moved = {role: _flat(before[role].parameters()) - _flat(nets[role].parameters()) for role in ROLES}
    assert all(gradient.norm() > 0.5 for gradient in gradients.values())
    for role, limit in {"G_A": 0.5, "G_B": None, "D_A": 0.1, "D_B": None}.items():
        expected = gradients[role] * (limit / gradients[role].norm() if limit else 1)
        torch.testing.assert_close(moved[role], expected, rtol=1e-4, atol=1e-6)


def _flat(tensors: Iterable[Tensor | None]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors if tensor is not None])


def _groups(optimizers: dict[str, torch.optim.Optimizer]) -> list[dict[str, Any]]:
    return [group for optimizer in optimizers.values() for group in optimizer.param_groups]


def _no_span(span: Span) -> float:
    raise AssertionError


def _factors(epochs: int, **settings: Any) -> list[float]:
    """Return the learning rate of each epoch, relative to the first."""
    optimizers, factors = _build(OptimizerConfig(lr=2.0)), []
    schedule = Schedule(ScheduleConfig(**settings), optimizers, epochs=epochs)
    for epoch in range(1, epochs + 1):
        schedule.apply(epoch, _no_span)
        factors.append(_groups(optimizers)[0]["lr"] / 2.0)
    return factors


def _rates(images: Sequence[int], config: OptimizerConfig, **settings: Any) -> dict[str, list[float]]:
    """Return the learning rates of each network at these images, in a run of 1000."""
    optimizers = _build(config)
    schedule = Schedule(ScheduleConfig.model_validate(settings), optimizers, epochs=200)
    rates: dict[str, list[float]] = {role: [] for role in ROLES}
    for count in images:
        progress = {"images": count, "seconds": 0, "progress": count / 1000, "images_per_epoch": 10}
        schedule.apply(1, lambda span: span.count(**progress))  # noqa: B023
        for group in _groups(optimizers):
            rates[group["name"]].append(group["lr"])
    return rates


def _torch_factors(epochs: int, make: Any) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, factors = make(optimizer), []
    for _ in range(epochs):
        factors.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return factors


def test_linear_equals_the_reference():
    factors = [float("nan"), *_factors(200)]
    assert factors[1] == factors[100] == 1
    assert [factors[101], factors[150], factors[200]] == pytest.approx([100 / 101, 51 / 101, 1 / 101])
    assert all(later < earlier for earlier, later in itertools.pairwise(factors[100:]))
    assert _factors(4, hold=0.0) == pytest.approx([4 / 5, 3 / 5, 2 / 5, 1 / 5])


def test_exponential_and_step_in_images_equal_keras_exponential_decay():
    images = [0, 1, 99, 100, 250, 999]
    smooth = _rates(images, OptimizerConfig(), kind="exponential", gamma=0.9, every="100 images")
    assert smooth["D_B"] == pytest.approx([2e-4 * 0.9 ** (count / 100) for count in images], rel=1e-12)
    stairs = _rates(images, OptimizerConfig(), kind="step", gamma=0.9, every="100 images")
    assert stairs["G_A"] == pytest.approx([2e-4 * 0.9 ** (count // 100) for count in images], rel=1e-12)


def test_warm_up_rises_from_0_and_multiplies_the_schedule():
    config = OptimizerConfig(lr=2.0)
    rates = _rates([0, 1, 25, 50, 51, 999], config, kind="constant", warmup="5 %")
    assert rates["G_A"] == pytest.approx([0.0, 0.04, 1.0, 2.0, 2.0, 2.0])
    decay = {"kind": "exponential", "gamma": 0.5, "every": "10 images"}
    rates = _rates([0, 10, 20, 30], config, **decay, warmup="2 epochs")
    assert rates["D_A"] == pytest.approx([0.0, 2 * 0.5 * 0.5, 2 * 0.25, 2 * 0.125])


def test_rules_change_the_schedule_of_their_networks():
    rules = ("G_A:schedule=exponential,every=100i", "G_B:gamma=0.2", "D_A:schedule=constant,lr=3,warmup=100i")
    rates = _rates([0, 50, 200], OptimizerConfig(lr=1.0, rules=rules), kind="step", gamma=0.5, every="100 images")
    assert rates["G_A"] == pytest.approx([1, 0.5**0.5, 0.25])
    assert rates["G_B"] == pytest.approx([1, 1, 0.04])
    assert rates["D_A"] == pytest.approx([0, 1.5, 3])
    assert rates["D_B"] == pytest.approx([1, 1, 0.25])


def test_step_cosine_exponential_and_constant_equal_torch():
    kinds = torch.optim.lr_scheduler
    step = _torch_factors(110, lambda o: kinds.StepLR(o, step_size=50, gamma=0.3))
    assert _factors(110, kind="step", gamma=0.3) == pytest.approx(step)
    cosine = _torch_factors(12, lambda o: kinds.CosineAnnealingLR(o, T_max=12))
    assert _factors(12, kind="cosine") == pytest.approx(cosine)
    exponential = _torch_factors(12, lambda o: kinds.ExponentialLR(o, gamma=0.8))
    images = [10 * epoch for epoch in range(12)]
    smooth = _rates(images, OptimizerConfig(lr=1.0), kind="exponential", gamma=0.8, every="1 epochs")
    assert smooth["G_A"] == pytest.approx(exponential)
    assert _factors(110, kind="exponential", gamma=0.3)[50::50] == pytest.approx([0.3, 0.09])
    assert _factors(12, kind="constant") == [1.0] * 12


def _build_single(net: nn.Module, kind: str, *, fused: bool) -> torch.optim.Optimizer:
    phase = Phase(name="phase", trains=("G",), loss=_nothing)
    config = OptimizerConfig(rules=(f"G:kind={kind},lr=0.1",))
    return build_optimizers(config, phases=[phase], nets={"G": net}, fused=fused)["phase"]


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd,momentum=0.9"])
def test_fused_kinds_update_weights_whose_first_gradient_comes_later(kind: str):
    start, results = nn.Linear(5, 3), []
    images = torch.randn(4, 5)
    for fused in (True, False):
        net = copy.deepcopy(start)
        optimizer = _build_single(net, kind, fused=fused)
        for parts in ((net.weight,), (net.weight, net.bias), (net.bias,), (net.weight, net.bias)):
            net(images).square().mean().backward()
            for weight in net.parameters():
                weight.grad = weight.grad if any(weight is part for part in parts) else None
            optimizer.step()
            optimizer.zero_grad()
        results.append([weight.detach() for weight in net.parameters()])
    torch.testing.assert_close(*results)
    assert not torch.equal(results[0][1], start.bias)


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd,momentum=0.9"])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_fused_kinds_update_channels_last_weights_and_adams_without_copies(layout: torch.memory_format, kind: str):
    torch.manual_seed(0)
    gradients = [torch.randn(8, 4, 3, 3).contiguous(memory_format=layout) for _ in range(3)]
    start, results, copies = nn.Conv2d(4, 8, 3, bias=False), [], []
    for fused in (True, False):
        net = copy.deepcopy(start).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        optimizer = _build_single(net, kind, fused=fused)
        for gradient in gradients:
            net.weight.grad = gradient
            with torch.profiler.profile() as profile:
                optimizer.step()
            if fused and kind != "sgd,momentum=0.9":
                copies += [event.name for event in profile.events() or () if event.name == "aten::clone"]
            assert torch.equal(net.weight.grad, gradient)
        results.append(net.weight.detach())
    assert not copies
    torch.testing.assert_close(*results)


def _trained(
    *, capturable: bool, rates: tuple[float, ...]
) -> tuple[dict[str, nn.Module], dict[str, torch.optim.Optimizer]]:
    """Return networks after a step of fused Adam at each of the `rates`, and the optimizers."""
    nets = _nets()
    optimizers = _build(OptimizerConfig(), nets, fused=True)
    if capturable:
        make_capturable(optimizers)
    for number, rate in enumerate(rates):
        config = ScheduleConfig(kind="exponential", gamma=rate / 2e-4, every="1 epochs")
        Schedule(config, optimizers).apply(1, lambda span: 1.0)
        _update(nets, optimizers.values(), number)
    return nets, optimizers


def test_capturable_rates_are_filled_in_place_and_train_the_same_to_rounding():
    rates = (2e-4, 1e-4, 3e-5)
    plain, _ = _trained(capturable=False, rates=rates)
    nets, optimizers = _trained(capturable=True, rates=rates)
    for actual, expected in _pairs(nets, plain):
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-9)
    before = [group["lr"] for group in _groups(optimizers)]
    Schedule(ScheduleConfig(kind="constant"), optimizers).apply(1, _no_span)
    assert all(group["lr"] is rate for group, rate in zip(_groups(optimizers), before))
    assert [float(rate) for rate in before] == pytest.approx([2e-4] * 4)


@pytest.mark.parametrize("first_captured", [True, False])
@pytest.mark.parametrize("second_captured", [True, False])
def test_loads_a_state_whether_it_was_captured_or_not(first_captured: bool, second_captured: bool):
    _, optimizers = _trained(capturable=first_captured, rates=(2e-4,))
    saved = {name: optimizer_state(optimizer) for name, optimizer in optimizers.items()}
    assert all(type(group["lr"]) is float for state in saved.values() for group in state["param_groups"])
    _, others = _trained(capturable=second_captured, rates=())
    rates = [group["lr"] for group in _groups(others)]
    for name, optimizer in others.items():
        load_optimizer_state(optimizer, saved[name])
    groups = _groups(others)
    assert [group["lr"] is rate for group, rate in zip(groups, rates)] == [True] * 4
    assert {group["capturable"] for group in groups} == {second_captured}
    assert {group["fused"] for group in groups} == {True}
    for name, optimizer in others.items():
        again = optimizer_state(optimizer)["state"]
        for key, moments in saved[name]["state"].items():
            assert all(torch.equal(again[key][moment], value) for moment, value in moments.items())
