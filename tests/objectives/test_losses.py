from __future__ import annotations

import math

import pytest
import torch

from velogan.objectives.losses import (
    FAKE_EDGE,
    SOURCE_EDGE,
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
def test_gan_losses_by_hand(kind: GanLossName, on_real: float, on_fake: float):
    assert float(gan_loss(LOGITS, is_real=True, kind=kind)) == pytest.approx(on_real)
    assert float(gan_loss(LOGITS, is_real=False, kind=kind)) == pytest.approx(on_fake)


def test_generator_loss_targets_real_and_is_the_negative_mean_for_hinge():
    assert float(generator_adversarial_loss(LOGITS, kind="lsgan")) == float(
        gan_loss(LOGITS, is_real=True, kind="lsgan")
    )
    assert float(generator_adversarial_loss(LOGITS, kind="hinge")) == pytest.approx(-0.375)


@pytest.mark.parametrize("kind", ["lsgan", "vanilla", "hinge"])
@pytest.mark.parametrize("real", [True, False])
def test_weights_images(kind: GanLossName, real: bool):
    images = [torch.tensor([2.0, -1.0]).view(1, 1, 1, 2), torch.tensor([0.5, 0.0]).view(1, 1, 1, 2)]
    first, second = (float(gan_loss(image, is_real=real, kind=kind)) for image in images)
    total = gan_loss([torch.cat(images)] * 2, is_real=real, kind=kind, weights=torch.tensor([0.5, 3.0]))
    assert float(total) == pytest.approx(2 * (0.5 * first + 3 * second) / 2)


def test_losses_of_heads_are_added():
    heads = [LOGITS, LOGITS[:1]]
    total = gan_loss(heads, is_real=False, kind="hinge")
    assert float(total) == pytest.approx(_mean([3.0, 0.0, 1.5, 1.0]) + _mean([3.0, 0.0]))


@pytest.mark.parametrize("kind", ["lsgan", "vanilla", "hinge"])
def test_losses_of_bfloat16_logits_are_float32(kind: GanLossName):
    logits = torch.full((3,), 300.0, dtype=torch.bfloat16)
    loss = gan_loss(logits, is_real=False, kind=kind)
    assert loss.dtype == torch.float32
    assert loss.isfinite()


def test_smoothing_lowers_the_target_of_real_images_only():
    assert float(gan_loss(LOGITS, is_real=True, kind="lsgan", smoothing=0.1)) == pytest.approx(
        _mean([1.1**2, 1.9**2, 0.4**2, 0.9**2])
    )
    assert float(gan_loss(LOGITS, is_real=True, kind="vanilla", smoothing=0.1)) == pytest.approx(
        _mean([0.9 * math.log1p(math.exp(-x)) + 0.1 * math.log1p(math.exp(x)) for x in (2.0, -1.0, 0.5, 0.0)])
    )
    for kind in ("lsgan", "vanilla"):
        smooth, plain = (gan_loss([LOGITS], is_real=False, kind=kind, smoothing=s) for s in (0.1, 0.0))
        assert float(smooth) == float(plain)


def test_edge_loss_by_hand():
    source = torch.tensor([[0.0, 0.3], [0.0, 0.0]]).expand(1, 1, 2, 2)  # one gradient, (0.3, 0)
    fake = torch.tensor([[0.5, 0.5], [0.9, 0.0]]).expand(1, 1, 2, 2)  # (0, 0.4), across it
    both = torch.tensor([[0.0, 0.6], [-0.8, 0.0]]).expand(1, 1, 2, 2)  # (0.6, -0.8)
    assert edge_loss(fake, source).item() == pytest.approx(1, abs=1e-4)
    similarity = 0.3 * 0.6 / math.sqrt((0.3**2 + SOURCE_EDGE**2) * (1 + FAKE_EDGE**2))
    assert edge_loss(both, source).item() == pytest.approx(1 - similarity, abs=1e-4)
    assert edge_loss(-both, source).item() == pytest.approx(1 - similarity, abs=1e-4)  # dark and bright exchanged


def test_edge_loss_weights_edges_by_strength_and_images_equally():
    """Edges of 1 and `SOURCE_EDGE` have weights of nearly 1 and a half; `FAKE_EDGE` in a fake counts in half."""
    row = torch.tensor([0.0, 1.0, 1.0, 1.0 - SOURCE_EDGE])
    source = row.expand(1, 1, 2, 4)
    strong, faint = 1 / (1 + SOURCE_EDGE**2), 0.5
    only_faint = torch.tensor([0.0, 0.0, 0.0, -FAKE_EDGE]).expand(1, 1, 2, 4)
    expected = (strong * 1 + faint * (1 - 0.5)) / (strong + faint)
    assert edge_loss(only_faint, source).item() == pytest.approx(expected, abs=1e-4)
    flat = torch.zeros(1, 1, 2, 4)
    pair = edge_loss(torch.cat([only_faint, flat]), torch.cat([source, flat]))
    assert pair.item() == pytest.approx(expected / 2, abs=1e-4)


def test_edge_loss_ignores_brightness_and_colour():
    torch.manual_seed(0)
    source = torch.rand(2, 3, 16, 16) - 0.5
    luma = (source * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)
    same = edge_loss(source, source).item()
    assert 0 < same < 0.2
    assert edge_loss(source - 0.4, source).item() == pytest.approx(same, abs=1e-4)
    assert edge_loss(luma, source).item() == pytest.approx(same, abs=1e-4)
    assert edge_loss(-source, source).item() == pytest.approx(same, abs=1e-4)
    assert edge_loss(source / 3, source).item() < 2 * same
    moved = edge_loss(source.roll(1, dims=-1), source).item()
    assert moved == pytest.approx(1 - 2 / math.pi, abs=0.05)  # with the mean |cos| of independent directions


def test_edge_loss_ignores_edges_added_in_flat_regions():
    source = torch.zeros(1, 3, 16, 16)
    source[..., 8:] = 1
    striped = source.clone()
    striped[..., ::2, :6] = 0.5
    assert edge_loss(striped, source).item() == pytest.approx(edge_loss(source, source).item(), abs=1e-4)


def test_edge_loss_has_a_finite_gradient_without_edges():
    source, flat = torch.rand(1, 3, 8, 8), torch.zeros(1, 3, 8, 8, requires_grad=True)
    edge_loss(flat, source).backward()
    assert flat.grad is not None
    assert flat.grad.isfinite().all()
    assert edge_loss(source, flat).item() == 0
    nearly = (source * 1e-3).requires_grad_()
    edge_loss(nearly, source).backward()
    assert nearly.grad is not None
    assert nearly.grad.abs().max() > 0
