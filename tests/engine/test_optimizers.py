from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import nn

from velogan.engine.optimizers import (
    OptimizerConfig,
    Schedule,
    ScheduleConfig,
    build_optimizers,
    load_optimizer_state,
    make_capturable,
    optimizer_state,
)
from velogan.objectives.base import Out, Phase

ROLES = ("G_A", "G_B", "D_A", "D_B")


def _nothing(nets: Any, batch: Any, carry: Any) -> Out:
    raise AssertionError


PHASES = [
    Phase(name="generator", trains=("G_A", "G_B"), loss=_nothing),
    Phase(name="discriminator", trains=("D_A", "D_B"), loss=_nothing),
]


def _nets() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {role: nn.Linear(5, 3) for role in ROLES}


def test_first_matching_rule_wins():
    config = OptimizerConfig(rules=("D_A:lr=1e-4,beta2=0.9", "D_*:lr=5e-5", "*_A:beta1=0.9"))
    assert config.settings("D_A") == {"lr": 1e-4, "betas": (0.5, 0.9)}
    assert config.settings("D_B") == {"lr": 5e-5, "betas": (0.5, 0.999)}
    assert config.settings("G_A") == {"lr": 2e-4, "betas": (0.9, 0.999)}
    assert config.settings("G_B") == {"lr": 2e-4, "betas": (0.5, 0.999)}


@pytest.mark.parametrize("rule", ["D_A", "D_A:", "D_A:lr", "D_A:lr=fast", "D_A:momentum=0.9", "lr=1e-4"])
def test_a_wrong_rule_is_refused_with_its_text(rule: str):
    with pytest.raises(ValueError, match=rf"'{rule}' is no optimizer rule: write NETWORK:lr=1e-4"):
        OptimizerConfig(rules=(rule,))


def test_a_phase_has_one_adam_with_a_named_group_per_network():
    made = build_optimizers(OptimizerConfig(rules=("D_B:lr=1e-5",)), phases=PHASES, nets=_nets(), fused=False)
    assert {name: [group["name"] for group in o.param_groups] for name, o in made.items()} == {
        "generator": ["G_A", "G_B"],
        "discriminator": ["D_A", "D_B"],
    }
    assert [group["lr"] for group in made["discriminator"].param_groups] == [2e-4, 1e-5]


@pytest.mark.parametrize("fused", [False, True])
def test_separate_adams_are_bit_for_bit_one_adam(fused: bool):
    nets = _nets()
    apart = copy.deepcopy(nets)
    together = build_optimizers(OptimizerConfig(), phases=PHASES, nets=nets, fused=fused)
    single = [torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=fused) for net in apart.values()]
    for step in range(3):
        images = torch.randn(4, 5, generator=torch.Generator().manual_seed(step))
        for group, optimizers in ((nets, together.values()), (apart, single)):
            for optimizer in optimizers:
                optimizer.zero_grad()
            sum(net(images).square().mean() for net in group.values()).backward()  # pyright: ignore
            for optimizer in optimizers:
                optimizer.step()
    for role in ROLES:
        for mine, theirs in zip(nets[role].parameters(), apart[role].parameters()):
            assert torch.equal(mine, theirs)


def _factors(epochs: int, losses: list[float] | None = None, **settings: Any) -> list[float]:
    """The factors that a schedule really sets, epoch by epoch."""
    schedule = Schedule(ScheduleConfig(**settings), epochs=epochs)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    optimizer.param_groups[0]["initial_lr"] = 2.0
    seen = []
    for epoch in range(epochs):
        schedule.apply({"only": optimizer})
        seen.append(optimizer.param_groups[0]["lr"] / 2.0)
        schedule.finish_epoch(losses[epoch] if losses else 0.0)
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


def test_step_cosine_exponential_and_constant_equal_torch():
    kinds = torch.optim.lr_scheduler
    step = _torch_factors(12, lambda o: kinds.StepLR(o, step_size=5, gamma=0.3))
    assert _factors(12, kind="step", step_epochs=5, gamma=0.3) == pytest.approx(step)
    cosine = _torch_factors(12, lambda o: kinds.CosineAnnealingLR(o, T_max=12))
    assert _factors(12, kind="cosine") == pytest.approx(cosine)
    exponential = _torch_factors(12, lambda o: kinds.ExponentialLR(o, gamma=0.8))
    assert _factors(12, kind="exponential", gamma=0.8) == pytest.approx(exponential)
    assert _factors(12, kind="constant") == [1.0] * 12


def test_plateau_equals_torch():
    losses = [5.0, 4.0, 4.1, 3.99, 4.2, 4.0, 4.0, 3.0, 3.0, 3.0, 3.1, 3.0, 2.0, 2.0, 2.0, 2.0]
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.2, patience=2, threshold=0.01)
    expected = []
    for loss in losses:
        expected.append(optimizer.param_groups[0]["lr"])
        scheduler.step(loss)
    assert len(set(expected)) >= 3
    seen = _factors(len(losses), losses, kind="plateau", gamma=0.2, patience=2, threshold=0.01)
    assert seen == pytest.approx(expected)


def test_plateau_sees_a_negative_loss_that_stands_still():
    assert _factors(5, [-2.0] * 5, kind="plateau", gamma=0.2, patience=2) == pytest.approx([1, 1, 1, 1, 0.2])
    assert _factors(5, [-2.0, -2.1, -2.3, -2.4, -2.5], kind="plateau", patience=1) == [1.0] * 5


def test_a_schedule_continues_from_its_state():
    config, losses = ScheduleConfig(kind="plateau", gamma=0.5, patience=1), [2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0]
    unbroken, stopped = Schedule(config, epochs=9), Schedule(config, epochs=9)
    for loss in losses[:3]:
        stopped.finish_epoch(loss)
    continued = Schedule(config, epochs=9)
    continued.load_state_dict(stopped.state_dict())
    for loss in losses:
        unbroken.finish_epoch(loss)
    for loss in losses[3:]:
        continued.finish_epoch(loss)
    assert continued.state_dict() == unbroken.state_dict()
    assert continued.factor(continued.epoch) == 0.25


def _trained(
    *, capturable: bool, rates: tuple[float, ...]
) -> tuple[dict[str, nn.Module], dict[str, torch.optim.Optimizer]]:
    """Networks after a step of fused Adam at each of the `rates`, and the optimizers."""
    nets = _nets()
    optimizers = build_optimizers(OptimizerConfig(), phases=PHASES, nets=nets, fused=True)
    if capturable:
        make_capturable(optimizers)
    for number, rate in enumerate(rates):
        schedule = Schedule(ScheduleConfig(kind="exponential", gamma=rate / 2e-4), epochs=2)
        schedule.epoch = 2
        schedule.apply(optimizers)
        images = torch.randn(4, 5, generator=torch.Generator().manual_seed(number))
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        sum(net(images).square().mean() for net in nets.values()).backward()  # pyright: ignore
        for optimizer in optimizers.values():
            optimizer.step()
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
    Schedule(ScheduleConfig(kind="constant"), epochs=1).apply(optimizers)
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


@pytest.mark.parametrize("given", ["channels-last", "contiguous"])
def test_fused_adam_updates_channels_last_weights_without_copies(given: str):
    torch.manual_seed(0)
    layout = torch.channels_last if given == "channels-last" else torch.contiguous_format
    gradients = [torch.randn(8, 4, 3, 3).contiguous(memory_format=layout) for _ in range(3)]
    start, updated, copies = nn.Conv2d(4, 8, 3, bias=False), [], []
    for fused in (True, False):
        net = copy.deepcopy(start).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        phase = Phase(name="one", trains=("G",), loss=_nothing)
        adam = build_optimizers(OptimizerConfig(), phases=[phase], nets={"G": net}, fused=fused)["one"]
        for gradient in gradients:
            net.weight.grad = gradient
            with torch.profiler.profile() as seen:
                adam.step()
            copies += [event.name for event in seen.events() or () if event.name == "aten::clone"]
            assert torch.equal(net.weight.grad, gradient)
        updated.append(net.weight.detach())
    assert not copies
    torch.testing.assert_close(*updated)
