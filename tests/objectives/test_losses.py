from __future__ import annotations

import math

import pytest
import torch

from velogan.objectives.base import batched_forward
from velogan.objectives.losses import (
    EDGE,
    FAINT,
    GanLossName,
    edge_loss,
    gan_loss,
    generator_adversarial_loss,
)

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
        ("hinge", _mean([0.0, 2.0, 0.5, 1.0]), _mean([3.0, 0.0, 1.5, 1.0])),
    ],
)
def test_losses_by_hand(kind: GanLossName, on_real: float, on_fake: float):
    assert float(gan_loss(LOGITS, real=True, kind=kind)) == pytest.approx(on_real)
    assert float(gan_loss(LOGITS, real=False, kind=kind)) == pytest.approx(on_fake)


def test_a_generator_is_judged_as_real_but_for_hinge():
    assert float(generator_adversarial_loss(LOGITS, kind="lsgan")) == float(gan_loss(LOGITS, real=True, kind="lsgan"))
    assert float(generator_adversarial_loss(LOGITS, kind="hinge")) == pytest.approx(-0.375)


def test_losses_of_heads_are_added():
    heads = [LOGITS, LOGITS[:1]]
    whole = gan_loss(heads, real=False, kind="hinge")
    assert float(whole) == pytest.approx(_mean([3.0, 0.0, 1.5, 1.0]) + _mean([3.0, 0.0]))


@pytest.mark.parametrize("kind", ["lsgan", "vanilla", "hinge"])
@pytest.mark.parametrize("real", [True, False])
def test_images_count_by_their_weights(kind: GanLossName, real: bool):
    images = [torch.tensor([2.0, -1.0]).view(1, 1, 1, 2), torch.tensor([0.5, 0.0]).view(1, 1, 1, 2)]
    first, second = (float(gan_loss(one, real=real, kind=kind)) for one in images)
    whole = gan_loss([torch.cat(images)] * 2, real=real, kind=kind, weights=torch.tensor([0.5, 3.0]))
    assert float(whole) == pytest.approx(2 * (0.5 * first + 3 * second) / 2)


def test_several_batches_in_one_pass_are_taken_apart_again():
    def net(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, x * 2

    (one, twice), (other, _) = batched_forward(net, torch.zeros(2, 1), torch.ones(3, 1))
    assert (one.tolist(), twice.tolist()) == ([[1], [1]], [[0], [0]])
    assert other.tolist() == [[2], [2], [2]]


@pytest.mark.parametrize("kind", ["lsgan", "vanilla", "hinge"])
def test_a_loss_is_float32_whatever_the_logits(kind: GanLossName):
    logits = torch.full((3,), 300.0, dtype=torch.bfloat16)
    loss = gan_loss(logits, real=False, kind=kind)
    assert loss.dtype == torch.float32
    assert loss.isfinite()


def test_smoothing_asks_for_less_of_real_images_alone():
    assert float(gan_loss(LOGITS, real=True, kind="lsgan", smoothing=0.1)) == pytest.approx(
        _mean([1.1**2, 1.9**2, 0.4**2, 0.9**2])
    )
    assert float(gan_loss(LOGITS, real=True, kind="vanilla", smoothing=0.1)) == pytest.approx(
        _mean([0.9 * math.log1p(math.exp(-x)) + 0.1 * math.log1p(math.exp(x)) for x in (2.0, -1.0, 0.5, 0.0)])
    )
    for kind in ("lsgan", "vanilla"):
        smooth, plain = (gan_loss([LOGITS], real=False, kind=kind, smoothing=s) for s in (0.1, 0.0))
        assert float(smooth) == float(plain)


def test_lost_edges_by_hand():
    given = torch.tensor([[0.0, 0.3], [0.0, 0.0]]).expand(1, 1, 2, 2)  # one gradient, (0.3, 0)
    made = torch.tensor([[0.5, 0.5], [0.9, 0.0]]).expand(1, 1, 2, 2)  # (0, 0.4), across it
    both = torch.tensor([[0.0, 0.6], [-0.8, 0.0]]).expand(1, 1, 2, 2)  # (0.6, -0.8)
    assert edge_loss(made, given).item() == pytest.approx(1, abs=1e-4)
    alike = 0.3 * 0.6 / math.sqrt((0.3**2 + EDGE**2) * (1 + FAINT**2))
    assert edge_loss(both, given).item() == pytest.approx(1 - alike, abs=1e-4)
    assert edge_loss(-both, given).item() == pytest.approx(1 - alike, abs=1e-4)  # its dark side may be the bright one


def test_strong_edges_count_more_and_each_image_alike():
    """Edges of strength 1 and `EDGE` have weights of nearly 1 and a half; a translation's of `FAINT` count in half."""
    row = torch.tensor([0.0, 1.0, 1.0, 1.0 - EDGE])
    given = row.expand(1, 1, 2, 4)
    strong, faint = 1 / (1 + EDGE**2), 0.5
    only_faint = torch.tensor([0.0, 0.0, 0.0, -FAINT]).expand(1, 1, 2, 4)
    wanted = (strong * 1 + faint * (1 - 0.5)) / (strong + faint)
    assert edge_loss(only_faint, given).item() == pytest.approx(wanted, abs=1e-4)
    flat = torch.zeros(1, 1, 2, 4)
    pair = edge_loss(torch.cat([only_faint, flat]), torch.cat([given, flat]))
    assert pair.item() == pytest.approx(wanted / 2, abs=1e-4)


def test_edges_count_and_neither_brightness_nor_colours_do():
    torch.manual_seed(0)
    given = torch.rand(2, 3, 16, 16) - 0.5
    luma = (given * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)
    same = edge_loss(given, given).item()
    assert 0 < same < 0.2
    assert edge_loss(given - 0.4, given).item() == pytest.approx(same, abs=1e-4)
    assert edge_loss(luma, given).item() == pytest.approx(same, abs=1e-4)
    assert edge_loss(-given, given).item() == pytest.approx(same, abs=1e-4)
    assert edge_loss(given / 3, given).item() < 2 * same
    moved = edge_loss(given.roll(1, dims=-1), given).item()
    assert moved == pytest.approx(
        1 - 2 / math.pi, abs=0.05
    )  # the mean of |cos| of directions that know nothing of each other


def test_what_appears_in_flat_places_costs_nothing():
    given = torch.zeros(1, 3, 16, 16)
    given[..., 8:] = 1
    striped = given.clone()
    striped[..., ::2, :6] = 0.5
    assert edge_loss(striped, given).item() == pytest.approx(edge_loss(given, given).item(), abs=1e-4)


def test_images_without_edges_have_a_finite_gradient():
    given, flat = torch.rand(1, 3, 8, 8), torch.zeros(1, 3, 8, 8, requires_grad=True)
    edge_loss(flat, given).backward()
    assert flat.grad is not None
    assert flat.grad.isfinite().all()
    assert edge_loss(given, flat).item() == 0
    nearly = (given * 1e-3).requires_grad_()
    edge_loss(nearly, given).backward()
    assert nearly.grad is not None
    assert nearly.grad.abs().max() > 0
