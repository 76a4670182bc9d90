from __future__ import annotations

import math

import pytest
import torch

from velogan.objectives.losses import GanLossName, fooling_loss, gan_loss, gradient_penalty, together

LOGITS = torch.tensor([[2.0, -1.0], [0.5, 0.0]])


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize(
    ("kind", "on_real", "on_fake"),
    [
        ("lsgan", _mean([1.0, 4.0, 0.25, 1.0]), _mean([4.0, 1.0, 0.25, 0.0])),
        (
            "vanilla",
            _mean([math.log1p(math.exp(-x)) for x in (2.0, -1.0, 0.5, 0.0)]),
            _mean([math.log1p(math.exp(x)) for x in (2.0, -1.0, 0.5, 0.0)]),
        ),
        ("wgangp", -0.375, 0.375),
        ("hinge", _mean([0.0, 2.0, 0.5, 1.0]), _mean([3.0, 0.0, 1.5, 1.0])),
    ],
)
def test_losses_by_hand(kind: GanLossName, on_real: float, on_fake: float):
    assert float(gan_loss(LOGITS, real=True, kind=kind)) == pytest.approx(on_real)
    assert float(gan_loss(LOGITS, real=False, kind=kind)) == pytest.approx(on_fake)


def test_a_generator_is_judged_as_real_but_for_hinge():
    assert float(fooling_loss(LOGITS, kind="lsgan")) == float(gan_loss(LOGITS, real=True, kind="lsgan"))
    assert float(fooling_loss(LOGITS, kind="hinge")) == pytest.approx(-0.375)


def test_losses_of_heads_are_added():
    heads = [LOGITS, LOGITS[:1]]
    whole = gan_loss(heads, real=False, kind="hinge")
    assert float(whole) == pytest.approx(_mean([3.0, 0.0, 1.5, 1.0]) + _mean([3.0, 0.0]))


def test_several_batches_in_one_pass_are_taken_apart_again():
    def net(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, x * 2

    (one, twice), (other, _) = together(net, torch.zeros(2, 1), torch.ones(3, 1))
    assert (one.tolist(), twice.tolist()) == ([[1], [1]], [[0], [0]])
    assert other.tolist() == [[2], [2], [2]]


@pytest.mark.parametrize("kind", ["lsgan", "vanilla", "wgangp", "hinge"])
def test_a_loss_is_float32_whatever_the_logits(kind: GanLossName):
    logits = torch.full((3,), 300.0, dtype=torch.bfloat16)
    loss = gan_loss(logits, real=False, kind=kind)
    assert loss.dtype == torch.float32
    assert loss.isfinite()


@pytest.mark.parametrize("length", [0.5, 1.0, 3.0])
def test_the_penalty_of_a_linear_critic_is_its_slope_from_one(length: float):
    weight = torch.randn(3, 5, 5)
    weight = (weight * (length / weight.norm())).requires_grad_()
    real, fake, mix = torch.randn(4, 3, 5, 5), torch.randn(4, 3, 5, 5), torch.rand(4)

    def critic(images: torch.Tensor) -> torch.Tensor:
        return (images * weight).sum((1, 2, 3))

    penalty = gradient_penalty(critic, real=real, fake=fake, mix=mix)
    assert float(penalty.detach()) == pytest.approx((length - 1) ** 2, abs=1e-5)
    (gradient,) = torch.autograd.grad(penalty, weight)  # d (|w| - 1)^2 / dw
    torch.testing.assert_close(gradient, 2 * (length - 1) * weight.detach() / length, atol=1e-4, rtol=1e-4)


def test_the_penalty_looks_at_each_mixture():
    """A critic whose gradient is its image, so that the penalty is about the mixture's length."""
    real, fake = torch.zeros(2, 1, 1, 1), torch.ones(2, 1, 1, 1)

    def penalty(*mix: float) -> float:
        tensor = torch.tensor(mix)
        return float(gradient_penalty(lambda x: (x**2).sum((1, 2, 3)) / 2, real=real, fake=fake, mix=tensor).detach())

    assert penalty(0.0, 0.0) == pytest.approx(0.0)
    assert penalty(1.0, 1.0) == pytest.approx(1.0)
    assert penalty(0.25, 0.5) == pytest.approx((0.25**2 + 0.5**2) / 2)
