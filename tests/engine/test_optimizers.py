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
    optimizers_of,
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


def _settings(config: OptimizerConfig) -> dict[str, dict[str, Any]]:
    """Each network's group beside the kind of its optimizer, as a step has them."""
    made = build_optimizers(config, phases=PHASES, nets=_nets(), fused=False)
    return {group["name"]: group | {"kind": type(o).__name__} for o in made.values() for group in o.param_groups}


def test_first_matching_rule_wins():
    config = OptimizerConfig(rules=("D_A:lr=1e-4,beta2=0.9", "D_*:lr=5e-5", "*_A:beta1=0.9"))
    made = {name: (group["lr"], group["betas"]) for name, group in _settings(config).items()}
    assert made["D_A"] == (1e-4, (0.5, 0.9))
    assert made["D_B"] == (5e-5, (0.5, 0.999))
    assert made["G_A"] == (2e-4, (0.9, 0.999))
    assert made["G_B"] == (2e-4, (0.5, 0.999))


def test_every_setting_may_be_a_networks_own():
    config = OptimizerConfig(
        weight_decay=0.1,
        rules=(
            "G_A: kind=adamw, lr=1e-3, weight_decay=0.2, clip_norm=1, schedule=exponential, gamma=0.9, every=50i",
            "G_B:kind=radam,clip_norm=0.5,warmup=5 %",
            "D_A:kind=sgd,momentum=0.9",
            "D_B:kind=rmsprop,beta2=0.99,momentum=0.3,epsilon=1e-7",
        ),
    )
    made = _settings(config)
    assert {name: group["kind"] for name, group in made.items()} == {
        "G_A": "AdamW",
        "G_B": "RAdam",
        "D_A": "SGD",
        "D_B": "RMSprop",
    }
    assert [(made[name]["lr"], made[name]["weight_decay"]) for name in ROLES] == [(1e-3, 0.2), *[(2e-4, 0.1)] * 3]
    assert [made[name]["clip_norm"] for name in ROLES] == [1.0, 0.5, None, None]
    assert made["G_A"]["schedule"] == {"kind": "exponential", "gamma": 0.9, "every": "50 images"}
    assert made["G_B"]["schedule"] == {"warmup": "5 percent"}
    assert made["D_A"]["momentum"] == 0.9
    assert (made["D_B"]["alpha"], made["D_B"]["momentum"], made["D_B"]["eps"]) == (0.99, 0.3, 1e-7)
    assert config.kinds == {"adam", "adamw", "radam", "sgd", "rmsprop"}


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        *[(rule, "is not a rule: write NETWORK:lr=1e-4") for rule in ("D_A", "D_A:", "D_A:lr", "lr=1e-4", ":lr=1")],
        ("D_A:lr=fast", ": lr=fast: Input should be a valid number"),
        ("D_A:lr=-1", ": lr=-1: Input should be greater than 0"),
        ("D_A:beta=0.9", ": there is no beta for a network; did you mean beta2?"),
        ("D_A:rules=1", ": there is no rules for a network; there are kind, lr, "),
        ("D_A:kind=muon", ": kind=muon: Input should be 'adam', 'adamw'"),
        ("D_A:schedule=fast", ": schedule=fast: Input should be 'linear', "),
        ("D_A:warmup=1000", ": warmup=1000: '1000' is not a duration: write '500 images'"),
        ("D_A:lr=1e-4,lr=2e-4", ": a key is repeated"),
        ("D_A:lr=none", ": lr=none: Input should be a valid number"),
    ],
)
def test_a_wrong_rule_is_refused_with_its_text(rule: str, why: str):
    with pytest.raises(ValueError, match=re.escape(f"'{rule}'{why if why[0] == ':' else f' {why}'}")):
        OptimizerConfig(rules=(rule,))


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        (("X_*:lr=1",), r"'X_\*:lr=1' has no effect: it matches no trained network \(G_A, G_B, D_A, D_B\)"),
        (("D_*:lr=1", "D_A:lr=2"), r"'D_A:lr=2' has no effect: .* or only those of earlier rules"),
    ],
)
def test_a_rule_that_changes_no_network_is_refused(rules: tuple[str, ...], why: str):
    with pytest.raises(ValueError, match=f"optimizer.rules: {why}"):
        build_optimizers(OptimizerConfig(rules=rules), phases=PHASES, nets=_nets(), fused=False)


def test_a_rule_may_switch_clipping_and_warm_up_off():
    config = OptimizerConfig(clip_norm=1.0, rules=("D_*:clip_norm=none,warmup=none",))
    optimizers = build_optimizers(config, phases=PHASES, nets=_nets(), fused=False)
    clips = {group["name"]: group["clip_norm"] for one in optimizers.values() for group in one.param_groups}
    assert clips == {"G_A": 1.0, "G_B": 1.0, "D_A": None, "D_B": None}
    schedule = Schedule(ScheduleConfig(kind="constant", warmup="100 images"), optimizers)
    assert [schedule.factor(name, 1, lambda span: 0.5) for name in ("G_A", "D_A")] == [0.5, 1.0]


def test_a_phase_has_one_adam_with_a_named_group_per_network():
    made = build_optimizers(OptimizerConfig(rules=("D_B:lr=1e-5",)), phases=PHASES, nets=_nets(), fused=False)
    assert {name: [group["name"] for group in o.param_groups] for name, o in made.items()} == {
        "generator": ["G_A", "G_B"],
        "discriminator": ["D_A", "D_B"],
    }
    assert [group["lr"] for group in made["discriminator"].param_groups] == [2e-4, 1e-5]


def test_a_phase_of_two_kinds_has_an_optimizer_of_each():
    made = build_optimizers(OptimizerConfig(rules=("D_B:kind=sgd",)), phases=PHASES, nets=_nets(), fused=True)
    assert list(made) == ["generator", "discriminator/adam", "discriminator/sgd"]
    assert optimizers_of(PHASES[0], made) == [made["generator"]]
    assert optimizers_of(PHASES[1], made) == [made["discriminator/adam"], made["discriminator/sgd"]]


def _update(nets: dict[str, nn.Module], optimizers: Iterable[torch.optim.Optimizer], number: int = 0) -> None:
    """One step on the images of that number."""
    images = torch.randn(4, 5, generator=torch.Generator().manual_seed(number))
    for optimizer in optimizers:
        optimizer.zero_grad()
    sum(net(images).square().mean() for net in nets.values()).backward()  # pyright: ignore
    for optimizer in optimizers:
        optimizer.step()


def _assert_equal(nets: dict[str, nn.Module], others: dict[str, nn.Module]) -> None:
    for role in ROLES:
        for mine, theirs in zip(nets[role].parameters(), others[role].parameters()):
            assert torch.equal(mine, theirs)


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
def test_separate_optimizers_are_bit_for_bit_one_and_groups_of_their_own(kind: str, fused: bool):
    rule, make = KINDS[kind]
    if fused:
        make = partial(make, fused=True)
    nets = _nets()
    apart, joint = copy.deepcopy(nets), copy.deepcopy(nets)
    together = build_optimizers(OptimizerConfig(rules=(f"*:kind={rule}",)), phases=PHASES, nets=nets, fused=fused)
    single = [make(net.parameters()) for net in apart.values()]
    one = make([parameter for net in joint.values() for parameter in net.parameters()])
    start = copy.deepcopy(nets)
    for number in range(8):  # RAdam rectifies from the sixth on
        for group, optimizers in ((nets, together.values()), (apart, single), (joint, [one])):
            _update(group, optimizers, number)
    _assert_equal(nets, apart)
    _assert_equal(nets, joint)
    assert not any(
        torch.equal(*pair) for role in ROLES for pair in zip(nets[role].parameters(), start[role].parameters())
    )


def test_rules_cost_no_kernel():
    counts = []
    for rules in ((), ("G_A:lr=1e-3", "G_B:beta1=0.9,weight_decay=0.1", "D_A:warmup=5i", "D_B:lr=1")):
        nets = _nets()
        optimizers = build_optimizers(OptimizerConfig(rules=rules), phases=PHASES, nets=nets, fused=True).values()
        _update(nets, optimizers)
        with torch.profiler.profile() as seen:
            _update(nets, optimizers)
        counts.append(Counter(event.name for event in seen.events() or () if event.name.startswith("aten::")))
    assert counts[0]["aten::_fused_adam_"] == len(ROLES)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_are_clipped_by_the_norm_of_each_network(fused: bool):
    nets = _nets()
    config = OptimizerConfig(kind="sgd", lr=1.0, rules=("G_A:clip_norm=0.5", "D_A:clip_norm=0.1"))
    optimizers = build_optimizers(config, phases=PHASES, nets=nets, fused=fused)
    before = copy.deepcopy(nets)
    _update(nets, [])  # leaves gradients
    gradients = {role: _flat(parameter.grad for parameter in nets[role].parameters()) for role in ROLES}
    for optimizer in optimizers.values():
        optimizer.step()
    moved = {role: _flat(before[role].parameters()) - _flat(nets[role].parameters()) for role in ROLES}
    assert all(gradient.norm() > 0.5 for gradient in gradients.values())
    expected = {
        "G_A": gradients["G_A"] * 0.5 / gradients["G_A"].norm(),
        "G_B": gradients["G_B"],
        "D_A": gradients["D_A"] * 0.1 / gradients["D_A"].norm(),
        "D_B": gradients["D_B"],
    }
    for role in ROLES:
        torch.testing.assert_close(moved[role], expected[role], rtol=1e-4, atol=1e-6)


def _flat(tensors: Iterable[Tensor | None]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors if tensor is not None])


def _optimizers(config: OptimizerConfig | None = None) -> dict[str, torch.optim.Optimizer]:
    return build_optimizers(config or OptimizerConfig(lr=2.0), phases=PHASES, nets=_nets(), fused=False)


def _rate(optimizers: dict[str, torch.optim.Optimizer], network: str = "G_A") -> float:
    return next(group["lr"] for group in _groups(optimizers) if group["name"] == network)


def _no_span(span: Span) -> float:
    raise AssertionError


def _factors(epochs: int, **settings: Any) -> list[float]:
    """The factors that a schedule really sets, epoch by epoch."""
    optimizers, seen = _optimizers(), []
    schedule = Schedule(ScheduleConfig(**settings), optimizers, epochs=epochs)
    for epoch in range(1, epochs + 1):
        schedule.apply(epoch, _no_span)
        seen.append(_rate(optimizers) / 2.0)
    return seen


def _by_image(images: Sequence[int], config: OptimizerConfig | None = None, **settings: Any) -> dict[str, list[float]]:
    """The rates of each network at so many images seen, in a run of 1000."""
    optimizers = _optimizers(config)
    schedule = Schedule(ScheduleConfig.model_validate(settings), optimizers, epochs=200)
    seen: dict[str, list[float]] = {role: [] for role in ROLES}
    for count in images:
        schedule.apply(1, lambda span: span.passed(images=count, seconds=0, progress=count / 1000, images_per_epoch=10))  # noqa: B023
        for role in ROLES:
            seen[role].append(_rate(optimizers, role))
    return seen


def _torch_factors(epochs: int, make: Any) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, seen = make(optimizer), []
    for _ in range(epochs):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


def test_linear_is_the_reference_table():
    factors = [float("nan"), *_factors(200)]
    assert factors[1] == factors[100] == 1
    assert factors[101] == pytest.approx(1 - 1 / 101)
    assert factors[150] == pytest.approx(1 - 50 / 101)
    assert factors[200] == pytest.approx(1 / 101)
    assert all(later < earlier for earlier, later in itertools.pairwise(factors[100:]))
    assert _factors(4, hold=0.0) == pytest.approx([4 / 5, 3 / 5, 2 / 5, 1 / 5])


def test_exponential_in_images_is_keras_exponential_decay_and_step_its_staircase():
    images = [0, 1, 99, 100, 250, 999]
    smooth = _by_image(images, OptimizerConfig(), kind="exponential", gamma=0.9, every="100 images")
    assert smooth["D_B"] == pytest.approx([2e-4 * 0.9 ** (count / 100) for count in images], rel=1e-12)
    stairs = _by_image(images, OptimizerConfig(), kind="step", gamma=0.9, every="100 images")
    assert stairs["G_A"] == pytest.approx([2e-4 * 0.9 ** (count // 100) for count in images], rel=1e-12)


def test_the_rate_rises_from_0_over_the_warmup_and_then_is_the_schedules():
    assert _by_image([0, 1, 25, 50, 51, 999], kind="constant", warmup="5 %")["G_A"] == pytest.approx(
        [0.0, 0.04, 1.0, 2.0, 2.0, 2.0]
    )
    both = _by_image([0, 10, 20, 30], kind="exponential", gamma=0.5, every="10 images", warmup="2 epochs")["D_A"]
    assert both == pytest.approx([0.0, 2 * 0.5 * 0.5, 2 * 0.25, 2 * 0.125])


def test_each_network_may_have_a_schedule_of_its_own():
    rules = ("G_A:schedule=exponential,every=100i", "G_B:gamma=0.2", "D_A:schedule=constant,lr=3,warmup=100i")
    seen = _by_image([0, 50, 200], OptimizerConfig(lr=1.0, rules=rules), kind="step", gamma=0.5, every="100 images")
    assert seen["G_A"] == pytest.approx([1, 0.5**0.5, 0.25])
    assert seen["G_B"] == pytest.approx([1, 1, 0.04])
    assert seen["D_A"] == pytest.approx([0, 1.5, 3])
    assert seen["D_B"] == pytest.approx([1, 1, 0.25])


def test_step_cosine_exponential_and_constant_equal_torch():
    kinds = torch.optim.lr_scheduler
    step = _torch_factors(110, lambda o: kinds.StepLR(o, step_size=50, gamma=0.3))
    assert _factors(110, kind="step", gamma=0.3) == pytest.approx(step)
    cosine = _torch_factors(12, lambda o: kinds.CosineAnnealingLR(o, T_max=12))
    assert _factors(12, kind="cosine") == pytest.approx(cosine)
    exponential = _torch_factors(12, lambda o: kinds.ExponentialLR(o, gamma=0.8))
    images = [10 * epoch for epoch in range(12)]
    smooth = _by_image(images, OptimizerConfig(lr=1.0), kind="exponential", gamma=0.8, every="1 epochs")
    assert smooth["G_A"] == pytest.approx(exponential)
    assert _factors(110, kind="exponential", gamma=0.3)[50::50] == pytest.approx([0.3, 0.09])
    assert _factors(12, kind="constant") == [1.0] * 12


def _trained(
    *, capturable: bool, rates: tuple[float, ...]
) -> tuple[dict[str, nn.Module], dict[str, torch.optim.Optimizer]]:
    """Networks after a step of fused Adam at each of the `rates`, and the optimizers."""
    nets = _nets()
    optimizers = build_optimizers(OptimizerConfig(), phases=PHASES, nets=nets, fused=True)
    if capturable:
        make_capturable(optimizers)
    for number, rate in enumerate(rates):
        config = ScheduleConfig(kind="exponential", gamma=rate / 2e-4, every="1 epochs")
        Schedule(config, optimizers).apply(1, lambda span: 1.0)
        _update(nets, optimizers.values(), number)
    return nets, optimizers


def _groups(optimizers: dict[str, torch.optim.Optimizer]) -> list[dict[str, Any]]:
    return [group for optimizer in optimizers.values() for group in optimizer.param_groups]


def test_rates_that_can_be_captured_are_filled_in_place_and_train_the_same_to_rounding():
    rates = (2e-4, 1e-4, 3e-5)
    plain, _ = _trained(capturable=False, rates=rates)
    nets, optimizers = _trained(capturable=True, rates=rates)
    for role in ROLES:
        for mine, theirs in zip(nets[role].parameters(), plain[role].parameters()):
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-9)
    before = [group["lr"] for group in _groups(optimizers)]
    Schedule(ScheduleConfig(kind="constant"), optimizers).apply(1, _no_span)
    assert all(group["lr"] is rate for group, rate in zip(_groups(optimizers), before))
    assert [float(rate) for rate in before] == pytest.approx([2e-4] * 4)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("then", [True, False])
def test_a_state_is_read_whether_it_was_captured_or_not(before: bool, then: bool):
    _, optimizers = _trained(capturable=before, rates=(2e-4,))
    saved = {name: optimizer_state(optimizer) for name, optimizer in optimizers.items()}
    assert all(type(group["lr"]) is float for state in saved.values() for group in state["param_groups"])
    _, mine = _trained(capturable=then, rates=())
    kept = [group["lr"] for group in _groups(mine)]
    for name, optimizer in mine.items():
        load_optimizer_state(optimizer, saved[name])
    groups = _groups(mine)
    assert [group["lr"] is rate for group, rate in zip(groups, kept)] == [True] * 4
    assert {group["capturable"] for group in groups} == {then}
    assert {group["fused"] for group in groups} == {True}
    for name, optimizer in mine.items():
        again = optimizer_state(optimizer)["state"]
        for key, moments in saved[name]["state"].items():
            assert all(torch.equal(again[key][what], value) for what, value in moments.items())


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd,momentum=0.9"])
def test_a_weight_whose_first_gradient_comes_later_is_updated_by_fused_kinds_too(kind: str):
    start, updated = nn.Linear(5, 3), []
    images = torch.randn(4, 5)
    for fused in (True, False):
        net = copy.deepcopy(start)
        phase = Phase(name="one", trains=("G",), loss=_nothing)
        config = OptimizerConfig(rules=(f"G:kind={kind},lr=0.1",))
        optimizer = build_optimizers(config, phases=[phase], nets={"G": net}, fused=fused)["one"]
        for parts in ((net.weight,), (net.weight, net.bias), (net.bias,), (net.weight, net.bias)):
            net(images).square().mean().backward()
            for weight in net.parameters():
                weight.grad = weight.grad if any(weight is part for part in parts) else None
            optimizer.step()
            optimizer.zero_grad()
        updated.append([weight.detach() for weight in net.parameters()])
    torch.testing.assert_close(*updated)
    assert not torch.equal(updated[0][1], start.bias)


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd,momentum=0.9"])
@pytest.mark.parametrize("given", ["channels-last", "contiguous"])
def test_fused_kinds_update_channels_last_weights_and_adams_without_copies(given: str, kind: str):
    torch.manual_seed(0)
    layout = torch.channels_last if given == "channels-last" else torch.contiguous_format
    gradients = [torch.randn(8, 4, 3, 3).contiguous(memory_format=layout) for _ in range(3)]
    start, updated, copies = nn.Conv2d(4, 8, 3, bias=False), [], []
    for fused in (True, False):
        net = copy.deepcopy(start).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        phase = Phase(name="one", trains=("G",), loss=_nothing)
        config = OptimizerConfig(rules=(f"G:kind={kind}",))
        optimizer = build_optimizers(config, phases=[phase], nets={"G": net}, fused=fused)["one"]
        for gradient in gradients:
            net.weight.grad = gradient
            with torch.profiler.profile() as seen:
                optimizer.step()
            if fused and kind != "sgd,momentum=0.9":
                copies += [event.name for event in seen.events() or () if event.name == "aten::clone"]
            assert torch.equal(net.weight.grad, gradient)
        updated.append(net.weight.detach())
    assert not copies
    torch.testing.assert_close(*updated)
