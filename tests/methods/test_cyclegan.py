from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from velogan.methods.cyclegan import CycleGAN, CycleGANObjective
from velogan.networks.discriminators import DiscriminatorConfig, build_discriminator
from velogan.networks.generators import GeneratorConfig, build_generator
from velogan.objectives.base import Branch, use_branch_runner
from velogan.objectives.losses import edge_loss

SHAPE = (3, 32, 32)


class _Affine(nn.Module):
    """`scale x + shift`: a network that can be followed by hand."""

    def __init__(self, scale: float, shift: float):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(scale)), shift

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x + self.shift


def _objective(*, batched: bool = False, shape: tuple[int, int, int] = SHAPE, **fields: Any) -> CycleGANObjective:
    return CycleGANObjective(CycleGAN.model_validate(fields), {"A": shape, "B": shape}, batched=batched)


def _by_hand() -> tuple[dict[str, nn.Module], dict[str, Tensor]]:
    nets: dict[str, nn.Module] = {
        "G_A": _Affine(2.0, 0.0),
        "G_B": _Affine(1.0, 0.5),
        "D_A": _Affine(3.0, 0.0),
        "D_B": _Affine(1.0, -1.0),
    }
    a, b = torch.full((1, 1, 1, 1), 0.1), torch.full((1, 1, 1, 1), -0.2)
    return nets, {"A": a, "B": b, "uniform": torch.full((6, 1), 0.25)}


@pytest.mark.parametrize("batched", [False, True])
def test_terms_by_hand(batched: bool):
    nets, batch = _by_hand()
    objective = _objective(batched=batched, shape=(1, 1, 1), cycle_a=10.0, cycle_b=20.0, identity=0.5)
    out = objective.generator_loss(nets, batch, {})
    # fake B = 0.2, back A = 0.7; fake A = 0.3, back B = 0.6; the same B = -0.4, the same A = 0.6
    expected = {
        "adversarial_a": (3 * 0.2 - 1) ** 2,
        "adversarial_b": (0.3 - 1 - 1) ** 2,
        "cycle_a": 10 * 0.6,
        "cycle_b": 20 * 0.8,
        "identity_a": 20 * 0.5 * 0.2,
        "identity_b": 10 * 0.5 * 0.5,
    }
    assert {name: float(value.detach()) for name, value in out.logged.items()} == pytest.approx(expected)
    assert float(out.loss.detach()) == pytest.approx(sum(expected.values()))
    assert {name: float(value.detach()) for name, value in out.cache.items()} == pytest.approx(
        {"fake_a": 0.3, "fake_b": 0.2}
    )

    cache = {name: value.detach() for name, value in out.cache.items()}
    judged = objective.discriminator_loss(nets, batch, cache)
    expected = {
        "a": 0.5 * ((3 * -0.2 - 1) ** 2 + (3 * 0.2) ** 2),
        "b": 0.5 * ((0.1 - 1 - 1) ** 2 + (0.3 - 1) ** 2),
    }
    assert {name: float(value.detach()) for name, value in judged.logged.items()} == pytest.approx(expected)
    assert float(judged.loss.detach()) == pytest.approx(sum(expected.values()))


def test_a_process_that_trains_discriminators_alone_translates_for_them():
    nets, batch = _by_hand()
    objective = _objective(shape=(1, 1, 1))
    made = objective.generator_loss(nets, batch, {}).cache
    with_cache, without = (objective.discriminator_loss(nets, batch, cache).loss for cache in (made, {}))
    assert float(with_cache.detach()) == float(without.detach())


def test_judges_are_shown_the_pool():
    nets, batch = _by_hand()
    objective = _objective(shape=(1, 1, 1), pool_size=1)
    old, new = torch.full((1, 1, 1, 1), 0.9), torch.zeros(1, 1, 1, 1)
    objective.discriminator_loss(nets, batch, {"fake_a": old, "fake_b": old})
    batch["uniform"] = torch.tensor([0.9, 0.0, 0.1, 0.0, 0.0, 0.0]).view(6, 1)  # B's pool swaps, A's does not
    terms = objective.discriminator_loss(nets, batch, {"fake_a": new, "fake_b": new}).logged
    assert float(terms["a"].detach()) == pytest.approx(0.5 * ((3 * -0.2 - 1) ** 2 + (3 * 0.9) ** 2))
    assert float(terms["b"].detach()) == pytest.approx(0.5 * ((0.1 - 2) ** 2 + (0 - 1) ** 2))


def test_judges_are_shown_untranslated_images_as_made_ones():
    nets, _ = _by_hand()
    a, b = torch.tensor([0.1, 0.3]).view(2, 1, 1, 1), torch.tensor([-0.2, -0.4]).view(2, 1, 1, 1)
    uniform = torch.full((8, 2), 0.25)
    uniform[6], uniform[7] = torch.tensor([0.3, 0.6]), torch.tensor([0.7, 0.1])  # of A the first, of B the second
    cache = {"fake_a": torch.full((2, 1, 1, 1), 0.8), "fake_b": torch.full((2, 1, 1, 1), -0.7)}
    objective = _objective(shape=(1, 1, 1), source_as_fake_fraction=0.5, pool_size=0)
    assert objective.draws == {"train": 8}
    terms = objective.discriminator_loss(nets, {"A": a, "B": b, "uniform": uniform}, cache).logged
    refused_a = [3 * 0.1, 3 * -0.7]
    refused_b = [0.8 - 1, -0.4 - 1]
    on_real_a = [(3 * -0.2 - 1) ** 2, (3 * -0.4 - 1) ** 2]
    on_real_b = [(0.1 - 1 - 1) ** 2, (0.3 - 1 - 1) ** 2]
    for letter, real, refused in (("a", on_real_a, refused_a), ("b", on_real_b, refused_b)):
        wanted = 0.5 * (sum(real) / 2 + sum(score**2 for score in refused) / 2)
        assert float(terms[letter].detach()) == pytest.approx(wanted)


def test_heads_on_trained_features_are_not_asked_about_untranslated_images():
    class Heads(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return 2 * x, x - 1, 3 * x  # two on features, then the PatchGAN

    nets: dict[str, nn.Module] = _by_hand()[0] | {"D_A": Heads(), "D_B": Heads()}
    batch = {"A": torch.tensor([0.1, 0.3]).view(2, 1, 1, 1), "B": torch.tensor([-0.2, -0.4]).view(2, 1, 1, 1)}
    uniform = torch.full((8, 2), 0.9)
    uniform[6] = torch.tensor([0.1, 0.6])  # the first of A
    cache = {name: torch.tensor([-0.7, -0.6]).view(2, 1, 1, 1) for name in ("fake_a", "fake_b")}
    objective = _objective(shape=(1, 1, 1), source_as_fake_fraction=0.2, pool_size=0)
    terms = objective.discriminator_loss(nets, batch | {"uniform": uniform}, cache).logged

    def halved(real: list[float], fakes: list[tuple[float, float, float]]) -> float:
        on_real = sum(sum((score - 1) ** 2 for score in (2 * x, x - 1, 3 * x)) for x in real)
        seen = sum(weight * ((2 * x) ** 2 + (x - 1) ** 2) for x, weight, _ in fakes)
        return 0.5 * (on_real + seen + sum((3 * x) ** 2 for _, _, x in fakes)) / 2

    a = halved([-0.2, -0.4], [(-0.7, 0.0, 0.1), (-0.6, 1.25, -0.6)])
    b = halved([0.1, 0.3], [(-0.7, 1.25, -0.7), (-0.6, 1.25, -0.6)])
    assert [float(terms[letter]) for letter in "ab"] == pytest.approx([a, b])


def test_edges_are_compared_with_those_of_each_translation_s_own_input():
    torch.manual_seed(0)
    nets: dict[str, nn.Module] = {
        **{role: build_generator(GeneratorConfig(channels=2, blocks=1)) for role in ("G_A", "G_B")},
        **{role: build_discriminator(DiscriminatorConfig(network="pixel", channels=2)) for role in ("D_A", "D_B")},
    }
    batch = {side: torch.rand(2, *SHAPE) * 2 - 1 for side in "AB"} | {"uniform": torch.rand(6, 2)}
    out = _objective(edges=3.0).generator_loss(nets, batch, {})
    plain = _objective().generator_loss(nets, batch, {})
    for letter, made, given, weight in (("a", "fake_b", "A", 3.0), ("b", "fake_a", "B", 3.0)):
        wanted = weight * edge_loss(out.cache[made], batch[given])
        assert out.logged[f"edges_{letter}"].item() == pytest.approx(wanted.item())
        assert wanted.item() > 0.1
        assert f"edges_{letter}" not in plain.logged
    assert out.logged.keys() - plain.logged.keys() == {"edges_a", "edges_b"}


@pytest.mark.parametrize(("gan", "identity", "count"), [("lsgan", 0.5, 1), ("vanilla", 0.0, 2), ("hinge", 0.5, 2)])
def test_batched_passes_equal_separate_ones(gan: str, identity: float, count: int):
    torch.manual_seed(0)
    generator, discriminator = GeneratorConfig(channels=4, blocks=1), DiscriminatorConfig(channels=4)
    nets: dict[str, nn.Module] = {role: build_generator(generator) for role in ("G_A", "G_B")}
    nets |= {role: build_discriminator(discriminator) for role in ("D_A", "D_B")}
    batch = {side: torch.rand(count, *SHAPE) * 2 - 1 for side in "AB"} | {"uniform": torch.rand(6, count)}
    results = []
    for batched in (False, True):
        mine = copy.deepcopy(nets)
        objective = _objective(batched=batched, gan=gan, identity=identity)
        first = objective.generator_loss(mine, batch, {})
        first.loss.backward()
        gradients = {
            f"{r}.{n}": p.grad.clone() for r in mine for n, p in mine[r].named_parameters() if p.grad is not None
        }
        for net in mine.values():
            net.zero_grad()
        cache = {name: value.detach() for name, value in first.cache.items()}
        second = objective.discriminator_loss(mine, batch, cache)
        second.loss.backward()
        gradients |= {f"{r} judging.{n}": p.grad for r in ("D_A", "D_B") for n, p in mine[r].named_parameters()}
        results.append({**first.logged, **second.logged, **cache, **gradients})
        assert any(name.startswith("identity") for name in first.logged) == bool(identity)
    apart, together = results
    assert apart.keys() == together.keys()
    for name, value in apart.items():
        if not name.endswith("bias"):  # dead before a norm: pure rounding
            assert (together[name] - value).norm() < 1e-4 * value.norm(), name


def test_its_phases_and_state_are_the_contract():
    objective = _objective()
    assert [(phase.name, phase.trains) for phase in objective.phases()] == [
        ("generator", ("G_A", "G_B")),
        ("discriminator", ("D_A", "D_B")),
    ]
    assert objective.draws == {"train": 6}
    assert set(objective.state.state_dict()) == {f"fake_{x}.{y}" for x in "ab" for y in ("images", "stored")}


def test_the_cycles_do_not_depend_on_each_other():
    torch.manual_seed(0)
    nets: dict[str, nn.Module] = {
        **{role: build_generator(GeneratorConfig(channels=2, blocks=1)) for role in ("G_A", "G_B")},
        **{role: build_discriminator(DiscriminatorConfig(network="pixel", channels=2)) for role in ("D_A", "D_B")},
    }
    batch = {side: torch.rand(1, 3, 16, 16) * 2 - 1 for side in "AB"}
    ran: list[int] = []

    def backwards(parts: Sequence[Branch]) -> list[tuple[Tensor, ...]]:
        ran.append(len(parts))
        return [part() for part in reversed(parts)][::-1]

    results = []
    for runner in (None, backwards):
        with use_branch_runner(runner):
            out = _objective(shape=(3, 16, 16)).generator_loss(nets, batch, {})
        results.append({**out.logged, **out.cache})
    assert ran == [2]
    assert all(torch.equal(value, results[1][name]) for name, value in results[0].items())


def test_adversarial_weights_are_of_one_direction_each_and_identity_of_both():
    nets, batch = _by_hand()
    even = _objective(shape=(1, 1, 1)).generator_loss(nets, batch, {}).logged
    weights: dict[str, Any] = {"adversarial_a": 3.0, "adversarial_b": 0.5, "identity": 0.25}
    odd = _objective(shape=(1, 1, 1), **weights).generator_loss(nets, batch, {}).logged
    for name, factor in {"adversarial_a": 3.0, "adversarial_b": 0.5, "identity_a": 0.5, "identity_b": 0.5}.items():
        assert odd[name].item() == pytest.approx(factor * even[name].item())
        assert even[name].item() > 0
