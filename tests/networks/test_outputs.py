from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from velogan.networks.generators import GeneratorConfig, build_generator, split_stages
from velogan.networks.layers import initialise
from velogan.networks.outputs import (
    FILTER_EPSILON,
    FILTER_RADIUS,
    FULL_DETAIL_AT,
    ChangeGenerator,
    KeepGenerator,
    MaskGenerator,
    apply_change,
    apply_mask,
    guided_filter,
    suppress_fine_detail,
    suppress_small_changes,
)


def _build(**fields: Any) -> nn.Module:
    return build_generator(GeneratorConfig(channels=2, blocks=1, **fields))


def test_detail_of_the_input_fades_with_the_mean_change_over_channels():
    x, before = torch.tensor([[0.5, 0.5, 0.5, 0.5]]), torch.tensor([[0.3, 0.3, 0.3, 0.3]])
    after = before + torch.tensor([[0.0, 0.15, -0.3, 0.6]])
    x, after, before = (row.expand(1, 3, 1, 4) for row in (x, after, before))
    outputs = apply_change(x, after=after, before=before)
    torch.testing.assert_close(outputs[0, 0], torch.tensor([[0.5, 0.45 + 0.1, 0.0, 0.9]]))
    x, before, after = torch.zeros(1, 3, 1, 1), torch.full((1, 3, 1, 1), -0.2), torch.full((1, 3, 1, 1), -0.2)
    after[0, 1] += 0.45  # a mean of half of FULL_REPLACE_AT
    outputs = apply_change(x, after=after, before=before)
    torch.testing.assert_close(outputs[0, 0], torch.full((1, 1), -0.2 + 0.5 * 0.2))


def test_a_change_generator_applies_the_decoded_change():
    torch.manual_seed(0)
    net = initialise(_build(output="change", decoder="simple"), gain=0.5)
    assert isinstance(net, ChangeGenerator)
    images = torch.rand(2, 3, 16, 16) * 2 - 1
    encoder, translator, decoder = split_stages(net)
    encoded = encoder(images)
    expected = apply_change(images, after=decoder(translator(encoded)), before=decoder(encoded))
    assert expected.abs().max() > 1
    torch.testing.assert_close(net(images), expected.clamp(-1, 1))
    mapped = net.map_parts(lambda stage: nn.Sequential(stage))
    assert torch.equal(mapped(images), net(images))
    with pytest.raises(ValueError, match=r"output=change takes the difference.*: set decoder=simple, or norm=none"):
        GeneratorConfig(output="change")


@pytest.mark.parametrize(
    ("mask", "expected"),
    [(-1.0, [0.5, -0.5]), (0.0, [0.4, 0.0]), (1.0, [0.3, 0.5])],
)
def test_the_mask_blends_input_and_image(mask: float, expected: list[float]):
    x = torch.tensor([0.5, -0.5]).view(1, 2, 1, 1)
    outputs = torch.tensor([0.3, 0.5, mask]).view(1, 3, 1, 1)
    assert apply_mask(outputs, x).flatten().tolist() == pytest.approx(expected)


def test_the_guided_filter_equals_the_paper_window_by_window():
    mask, guide = torch.rand(2, 1, 17, 20), torch.rand(2, 1, 17, 20) * 2 - 1
    slopes, offsets = torch.zeros(2, 17, 20), torch.zeros(2, 17, 20)

    def window(values: Tensor, row: int, column: int) -> Tensor:
        return values[
            :,
            max(row - FILTER_RADIUS, 0) : row + FILTER_RADIUS + 1,
            max(column - FILTER_RADIUS, 0) : column + FILTER_RADIUS + 1,
        ].flatten(1)

    for row, column in product(range(17), range(20)):
        p, i = window(mask[:, 0], row, column), window(guide[:, 0], row, column)
        slopes[:, row, column] = ((p * i).mean(1) - p.mean(1) * i.mean(1)) / (
            i.var(1, correction=0) + FILTER_EPSILON
        )  # eq. 5
        offsets[:, row, column] = p.mean(1) - slopes[:, row, column] * i.mean(1)  # eq. 6
    expected = torch.zeros(2, 1, 17, 20)
    for row, column in product(range(17), range(20)):
        slope, offset = window(slopes, row, column).mean(1), window(offsets, row, column).mean(1)
        expected[:, 0, row, column] = slope * guide[:, 0, row, column] + offset  # eq. 8
    torch.testing.assert_close(guided_filter(mask, guide), expected, atol=1e-5, rtol=1e-5)


def test_the_mask_ends_at_an_edge_of_the_input_which_gets_no_gradient_as_guide():
    x = torch.where(torch.arange(32) < 16, 0.9, -0.5).repeat(1, 3, 32, 1)
    mask = torch.where(torch.arange(32) < 13, -1.0, 1.0).expand(1, 1, 32, 32)  # three pixels too far
    x.requires_grad_()
    outputs = apply_mask(torch.cat([torch.zeros(1, 3, 32, 32), mask], 1), x)
    share = (1 - outputs / x).detach()[0, 0, 16]
    assert share[15] < 0.6 < 0.9 < share[16]  # both were 1
    assert share[0] == 0
    outputs.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad[0, 0, 16], 1 - share)  # none through the guide


def test_suppresses_weak_changes_of_fine_detail():
    x = torch.rand(2, 3, 24, 24) - 0.5
    stripes = (torch.arange(24) % 4 < 2) * 1.0 - 0.5
    ramp = torch.linspace(-0.5, 0.5, 24).view(-1, 1)
    torch.testing.assert_close(suppress_fine_detail(x + 0.2, x), x + 0.2)  # brightness is not detail
    torch.testing.assert_close(suppress_fine_detail(x + stripes, x), x + stripes)  # strong detail is applied
    inner = (..., slice(8, 16), slice(8, 16))
    torch.testing.assert_close(suppress_fine_detail(x + ramp, x)[inner], (x + ramp)[inner])
    faint = 0.02 * torch.tensor([1.0, -1.0]).repeat(12)
    (applied,) = (suppress_fine_detail(x + faint, x) - x).abs()[inner].unique(sorted=False).round(decimals=4).unique()
    assert applied == pytest.approx(0.02 * 0.02 / FULL_DETAIL_AT, abs=5e-5)
    both = suppress_fine_detail(x + ramp + faint, x)[inner] - (x + ramp)[inner]
    assert both.abs().max() < 0.006


def test_a_mask_generator_suppresses_fine_detail_in_eval_mode():
    net = _build(output="mask")
    assert isinstance(net, MaskGenerator)
    images = torch.rand(2, 3, 16, 16) * 2 - 1
    outputs = apply_mask(net.net(images), images)
    assert torch.equal(net(images), outputs)
    net.eval()
    assert torch.equal(net(images), suppress_fine_detail(outputs, images))
    mapped = net.map_parts(lambda inner: nn.Sequential(inner))
    assert torch.equal(mapped(images), net(images))
    assert suppress_fine_detail(outputs[..., :4, :4], images[..., :4, :4]).shape == (2, 3, 4, 4)


def test_suppresses_small_changes_in_eval_mode():
    x = torch.tensor([0.5, 0.5, -0.5]).expand(1, 2, 1, 3)
    outputs = x + torch.tensor([0.03, -0.15, 0.6])
    applied = torch.tensor([0.15 * 0.03, 0.75 * -0.15, 0.6])
    torch.testing.assert_close(suppress_small_changes(outputs, x), x + applied)
    outputs = torch.stack([x[:, 0] + 0.3, x[:, 1]], 1)  # a change of one channel: a mean of 0.15
    torch.testing.assert_close(
        suppress_small_changes(outputs, x)[0, :, 0], torch.stack([x[0, 0, 0] + 0.225, x[0, 1, 0]])
    )
    net = _build(output="keep")
    assert isinstance(net, KeepGenerator)
    images = torch.rand(2, 3, 16, 16) * 2 - 1
    assert torch.equal(net(images), net.net(images))  # in training mode
    net.eval()
    assert torch.equal(net(images), suppress_fine_detail(suppress_small_changes(net.net(images), images), images))
    mapped = net.map_parts(lambda inner: nn.Sequential(inner))
    assert isinstance(mapped, KeepGenerator)
    assert torch.equal(mapped(images), net(images))
    with pytest.raises(ValueError, match="output=keep keeps parts of the input, but A and B have 3 and 1 channel"):
        build_generator(GeneratorConfig(output="keep"), out_channels=1)
