from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from velogan.networks.cells import choices, generator_kinds
from velogan.networks.generators import GeneratorConfig
from velogan.networks.sizes import macs, size
from velogan.search.budget import WITHIN, Budget, Limit
from velogan.search.costs import Costs, Counted, Measured, Shape, by_turns
from velogan.search.fitting import Bounds, likeliest, likelihood
from velogan.search.supernet import Supernets, derive, mixtures
from velogan.types import Direction

SIDE = 32
ENDS: dict[Direction, tuple[int, int]] = {"a2b": (3, 3), "b2a": (3, 3)}


@torch.no_grad()
def choose(net: nn.Module, operations: Sequence[str]) -> None:
    """Makes the share of each of `operations` exactly 1, and of the others 0."""
    for mixed, name in zip(mixtures(net).values(), operations, strict=True):
        mixed.alpha.fill_(-torch.inf)
        mixed.alpha[list(mixed.candidates).index(name)] = 0


def _cells(**fields: Any) -> GeneratorConfig:
    return GeneratorConfig.model_validate({"network": "cells", "blocks": 3, "channels": 4} | fields)


def _supernet(config: GeneratorConfig, seed: int, *, spread: float = 1.0) -> nn.Module:
    torch.manual_seed(seed)
    net = Supernets().generator(config)
    for mixed in mixtures(net).values():
        nn.init.normal_(mixed.alpha, std=spread)
    return net


def _limit(text: str, config: GeneratorConfig | None = None, **fields: Any) -> Limit:
    return Limit(Budget.parse(text), {"a2b": config or _cells()}, ends=ENDS, side=SIDE, **fields)


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("2GMAC", 2e9, "MAC"),
        (" 1.5 gmacs ", 1.5e9, "MAC"),
        ("5Mparam", 5e6, "param"),
        ("800 kparameters", 8e5, "param"),
        ("20MB", 5e6, "param"),
        ("30ms", 30, "ms"),
    ],
)
def test_budgets_as_a_user_writes_them(text: str, amount: float, unit: str):
    budget = Budget.parse(text)
    assert (budget.amount, budget.unit) == (amount, unit)
    assert Budget.parse(str(budget)) == budget


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("5M", "budget='5M' is no amount, above 0 and with a unit, of .*: write 2GMAC, 5Mparam, 20MB or 30ms"),
        ("2GFLOP", "budget='2GFLOP' is no amount"),
        ("-2GMAC", "is no amount"),
        ("nan ms", "is no amount"),
        ("", "is no amount"),
        ("1" * 5000 + "MAC", "is no amount"),
        ("0.0ms", "is no amount, above 0"),
    ],
)
def test_what_is_no_budget(text: str, why: str):
    with pytest.raises(ValueError, match=why):
        Budget.parse(text)


def test_amounts_are_written_with_three_digits():
    budget = Budget.parse("2GMAC")
    assert budget.text(1_234_567_890) == "1.23GMAC"
    assert budget.text(123_456) == "123kMAC"
    assert Budget.parse("1ms").text(0.01234) == "0.0123ms"


@pytest.mark.parametrize(
    "fields",
    [{}, {"space": "code"}, {"norm": "batch", "output": "mask"}, {"norm": "none", "output": "change"}],
    ids=str,
)
def test_with_one_hot_shares_the_expected_cost_is_that_of_the_derived_network(fields: dict[str, Any]):
    """Counted at the width of the result, though the supernet is narrower."""
    draw, config = random.Random(0), _cells(**fields)
    net = Supernets().generator(config, in_channels=3, out_channels=3)
    limits = {
        what: _limit(text, config, hidden=40) for what, text in {"macs": "12MMAC", "parameters": "200kparam"}.items()
    }
    for _ in range(4):
        operations = tuple(draw.choice(choices(kind, config.space)) for kind in generator_kinds(3, config.space))
        choose(net, operations)
        found = size(config.model_copy(update={"channels": 40, "operations": operations}), side=SIDE)
        for what, limit in limits.items():
            assert limit.expected("a2b", net).item() == getattr(found, what), operations


def test_two_pictures_are_two_pictures():
    """The decoder of output=change sees the encoding before and after."""
    plain, change = (
        size(_cells(blocks=0, norm="none", output=output, operations=("conv3", "conv3", "nearest", "nearest")), side=32)
        for output in ("image", "change")
    )
    decoder = 8 * 8 * 4 * 2 + 16 * 16 * 2 * 3  # of 1x1 convolutions before the pixels are doubled
    assert change.macs - plain.macs == decoder
    assert macs(nn.Conv2d(3, 2, 1), torch.zeros(5, 3, 4, 4)) == 5 * 16 * 6


def test_the_penalty_pushes_down_and_only_above_the_budget():
    net = _supernet(_cells(), seed=0)
    spent = _limit("12MMAC", hidden=40).expected("a2b", net).item()

    def pushed(amount: float) -> tuple[float, torch.Tensor]:
        limit = Limit(Budget(amount, "MAC"), {"a2b": _cells()}, ends=ENDS, side=SIDE, hidden=40)
        net.zero_grad()
        penalty = limit.penalty({"a2b": net})
        penalty.backward()
        return penalty.item(), torch.cat(
            [one.alpha.grad for one in mixtures(net).values() if one.alpha.grad is not None]
        )

    inside, at_rest = pushed(1.01 * spent)
    assert inside == 0
    assert not at_rest.any()
    slightly, little = pushed(spent / 1.01)
    doubled, much = pushed(spent / 2)
    assert 0 < slightly < 2e-4
    assert little.norm() < much.norm() / 50  # no kink where it begins
    assert doubled == pytest.approx(torch.tensor(2.0).log().square().item(), rel=1e-5)


def test_descending_the_penalty_holds_the_budget():
    net, limit = _supernet(_cells(), seed=1), _limit("9MMAC", hidden=40)
    alphas = [one.alpha for one in mixtures(net).values()]
    optimizer = torch.optim.Adam(alphas, lr=0.05)
    before = limit.expected("a2b", net).item()
    for _ in range(150):
        optimizer.zero_grad()
        limit.penalty({"a2b": net}).backward()
        optimizer.step()
    assert before > 1.3 * 9e6
    assert limit.expected("a2b", net).item() < 1.02 * 9e6


def test_the_likeliest_network_within_a_budget():
    """Held against all 576 of them."""
    draw = random.Random(0)
    costs = Counted("macs").costs(_cells(blocks=0, channels=24), ends=(3, 3), side=SIDE)
    everything = list(itertools.product(*costs.places))
    for _ in range(5):
        shares = [[draw.random() for _ in place] for place in costs.places]
        most = costs.of(draw.choice(everything))
        bounds = Bounds(WITHIN * most, most)
        best = max(
            (one for one in everything if bounds.hold(costs.of(one))), key=lambda one: likelihood(one, shares, costs)
        )
        assert likeliest(shares, costs, bounds) == best


@pytest.mark.parametrize("text", ["7MMAC", "12MMAC", "25MMAC", "250kparam", "0.8MB"])
def test_with_a_width_given_operations_are_replaced_until_they_cost_the_budget(text: str):
    limit = _limit(text, hidden=40)
    for seed in range(3):
        net = _supernet(_cells(), seed=seed)
        fit = limit.fit({"a2b": net})["a2b"]
        made = size(_cells(channels=40, operations=fit.operations), side=SIDE)
        assert fit.hidden == 40
        assert fit.cost == (made.macs if "MAC" in text else made.parameters)
        assert WITHIN * limit.budget.amount <= fit.cost <= limit.budget.amount
        assert fit.replaced == sum(one != other for one, other in zip(fit.operations, derive(net)))


def test_operations_that_hold_the_budget_are_left_alone():
    net = _supernet(_cells(), seed=0)
    found = size(_cells(channels=40, operations=derive(net)), side=SIDE)
    limit = Limit(Budget(1.03 * found.macs, "MAC"), {"a2b": _cells()}, ends=ENDS, side=SIDE, hidden=40)
    assert limit.fit({"a2b": net})["a2b"].operations == derive(net)


@pytest.mark.parametrize("text", ["12MMAC", "1.7Mparam"])
def test_without_a_width_each_generator_is_as_wide_as_the_budget_allows(text: str):
    limit = Limit(Budget.parse(text), {"a2b": _cells(), "b2a": _cells()}, ends=ENDS, side=SIDE)
    nets: dict[Direction, nn.Module] = {"a2b": _supernet(_cells(), seed=1), "b2a": _supernet(_cells(), seed=2)}
    for way, fit in limit.fit(nets).items():
        assert fit.operations == derive(nets[way])
        assert fit.replaced == 0
        assert WITHIN * limit.budget.amount <= fit.cost <= limit.budget.amount
        wider = size(_cells(channels=fit.hidden + 1, operations=fit.operations), side=SIDE)
        assert (wider.macs if "MAC" in text else wider.parameters) > limit.budget.amount


def test_a_search_without_a_width_begins_within_its_budget():
    """Equal shares cost the budget, at the width that is planned."""
    limit, net = _limit("40MMAC"), _supernet(_cells(), seed=0, spread=0.0)
    assert WITHIN * 40e6 <= limit.expected("a2b", net).item() <= 40e6
    assert limit.penalty({"a2b": net}).item() == 0


def test_where_widths_are_too_far_apart_operations_are_replaced():
    limit = _limit("300kMAC")
    fits = [limit.fit({"a2b": _supernet(_cells(), seed=seed)})["a2b"] for seed in range(4)]
    assert all(WITHIN * 3e5 <= fit.cost <= 3e5 for fit in fits)
    assert any(fit.replaced for fit in fits)


def test_budgets_that_nothing_meets():
    with pytest.raises(
        ValueError, match=r"budget=5.00kMAC is less than the smallest .* hidden=1 at 32x32 .*: give that$"
    ):
        _limit("5kMAC")
    with pytest.raises(
        ValueError, match=r"budget=1.00MMAC is less than .* hidden=40 .*, or a smaller hidden$"
    ) as error:
        _limit("1MMAC", hidden=40)
    _limit(str(error.value).split(", ")[1].split(": ")[0], hidden=40)  # what it says is enough
    with pytest.raises(ValueError, match=r"is more than the largest generator of hidden=40 .* or leave hidden out$"):
        _limit("2GMAC", hidden=40)


def _slow(nets: Sequence[tuple[nn.Module, Shape]]) -> list[float]:
    """A machine on which whole networks take 40 % longer than their operations, and small kernels are slow."""
    found = []
    for net, shape in nets:
        whole = len(list(net.modules())) > 4
        taken = macs(net, torch.empty(shape)) / 1e6 + 0.001 * sum(p.numel() ** 0.5 for p in net.parameters())
        found.append(1.4 * taken if whole else taken)
    return found


@pytest.mark.parametrize("hidden", [None, 24])
def test_milliseconds_are_those_of_the_built_network(hidden: int | None):
    limit = _limit("7ms", hidden=hidden, meter=Measured(_slow))
    for seed in range(2):
        fit = limit.fit({"a2b": _supernet(_cells(), seed=seed)})["a2b"]
        config = _cells(channels=fit.hidden, operations=fit.operations)
        assert Measured(_slow).built(config, ends=(3, 3), side=SIDE) == fit.cost
        assert WITHIN * 7 <= fit.cost <= 7


def test_measuring_changes_no_random_numbers_and_nothing_is_measured_twice():
    asked: list[int] = []

    def measure(nets: Sequence[tuple[nn.Module, Shape]]) -> list[float]:
        asked.append(len(nets))
        return [1.0] * len(nets)

    torch.manual_seed(0)
    before, meter = torch.get_rng_state(), Measured(measure)
    for _ in range(2):
        costs = meter.costs(_cells(), ends=(3, 3), side=SIDE)
    assert asked == [8 + 8 + 5 + 3 + 3, 1]
    assert torch.equal(torch.get_rng_state(), before)
    assert costs.of(["conv3"] * 8 + ["transposed3"] * 2) == pytest.approx(1)


def test_each_network_has_its_turn_and_the_median_counts():
    order: list[str] = []
    now = iter([0, 0, *[0, 1, 0, 7], *[0, 2, 0, 8], *[0, 50, 0, 9]])

    class Named(nn.Module):
        def __init__(self, name: str):
            super().__init__()
            self.name = name

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            order.append(self.name)
            return x

    measure = by_turns(torch.device("cpu"), rounds=3, clock=lambda: float(next(now)))
    assert measure([(Named("a"), (1, 2)), (Named("b"), (1, 2))]) == [2000, 8000]
    assert order == ["a", "b"] * 4


def test_costs_outlive_a_restart():
    """A continued search is steered by what was measured when it began."""
    first = _limit("7ms", hidden=24, meter=Measured(_slow))
    again = _limit("7ms", hidden=24, meter=Measured(lambda nets: [1.01 * one for one in _slow(nets)]))
    again.load_state_dict(first.state_dict())
    net = _supernet(_cells(), seed=0)
    assert torch.equal(first.expected("a2b", net), again.expected("a2b", net))


def test_costs_of_nothing_but_places():
    costs = Costs(({"a": 1.0, "b": 3.0}, {"c": 2.0}), rest=10)
    assert (costs.of(costs.cheapest), costs.of(costs.dearest), costs.average) == (13, 15, 14)
