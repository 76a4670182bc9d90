from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from velogan.networks.generators import GeneratorConfig, build_generator
from velogan.networks.outputs import KeepGenerator, MaskGenerator
from velogan.translate.tiles import RAMP, TileAxis, blend_tiles, plan_axis, receptive_radius, reflect_indices


@st.composite
def axes(draw: st.DrawFn) -> TileAxis:
    multiple = draw(st.sampled_from([1, 4, 8]))
    size = draw(st.integers(2, 20)) * multiple
    overlap = draw(st.integers(0, size // 2 // multiple)) * multiple
    return plan_axis(draw(st.integers(1, 100)) * multiple, size=size, overlap=overlap, multiple=multiple)


@settings(deadline=None)
@given(axes())
def test_tiles_cover_a_side_and_their_weights_add_up_to_one(tiles: TileAxis) -> None:
    total = torch.zeros(tiles.length)
    for start, weights in zip(tiles.starts, tiles.weights):
        assert start % tiles.multiple == 0
        assert weights.min() >= 0
        total[start : start + tiles.size] += weights
    torch.testing.assert_close(total, torch.ones(tiles.length))
    assert tiles.starts[-1] + tiles.size == tiles.length


@given(axes())
def test_cores_take_every_pixel_once(tiles: TileAxis) -> None:
    spans = [
        (round(start + first * tiles.size), round(start + last * tiles.size))
        for start, (first, last) in zip(tiles.starts, tiles.cores)
    ]
    assert [first for first, _ in spans] == [0, *(last for _, last in spans[:-1])]
    assert spans[-1][1] == tiles.length
    assert all(first % tiles.multiple == 0 for first, _ in spans)


def test_neighbours_overlap_and_share_a_linear_ramp_in_the_middle_of_it() -> None:
    for overlap, ramp in ((12, 4), (60, RAMP)):
        tiles = plan_axis(400 - 3 * overlap, size=100, overlap=overlap, multiple=1)
        assert tiles.starts == tuple(i * (100 - overlap) for i in range(4))
        left = tiles.weights[0]
        outer = (overlap - ramp) // 2
        assert torch.equal(left[: 100 - outer - ramp], torch.ones(100 - outer - ramp))
        steps = 1 - (torch.arange(ramp) + 0.5) / ramp
        torch.testing.assert_close(left[100 - outer - ramp : 100 - outer], steps)
        assert torch.equal(left[100 - outer :], torch.zeros(outer))
        torch.testing.assert_close(tiles.weights[1][:overlap], 1 - left[100 - overlap :])


@pytest.mark.parametrize(
    "fields",
    [
        {"blocks": 0, "channels": 2},
        {"blocks": 2, "channels": 3},
        {"blocks": 0, "channels": 2, "decoder": "resize"},
        {"blocks": 2, "channels": 3, "decoder": "resize", "padding": "reflect"},
        {"blocks": 1, "channels": 3, "antialias": "both"},
        {"blocks": 1, "network": "cells", "channels": 24}
        | {"operations": ("avg_pool", "conv5", "dilated3", "dilated5", "bilinear", "nearest")},
    ],
)
def test_reach_is_how_far_a_pixel_is_felt(fields: dict[str, Any]) -> None:
    torch.manual_seed(0)  # by some draws a network of few channels feels nothing at its farthest
    config = GeneratorConfig.model_validate({"norm": "none", "init": "kaiming"} | fields)
    net = build_generator(config).eval()
    picture = torch.zeros(1, 3, 1, 160).repeat(1, 1, 160, 1)
    felt = 0
    with torch.no_grad():
        plain = net(picture)
        for column in range(80, 84):
            touched = picture.clone()
            touched[..., column] = 1
            away = (torch.nonzero((net(touched) - plain).abs().amax((0, 1, 2))) - column).abs()
            felt = max(felt, int(away.max()))
    assert felt <= receptive_radius(net) <= felt + 3


@pytest.mark.parametrize(("kind", "channels"), [(MaskGenerator, 4), (KeepGenerator, 3)])
def test_radius_counts_what_comes_behind_the_network(kind: type[MaskGenerator], channels: int) -> None:
    inner = nn.Conv2d(3, channels, 1)
    net = kind(inner, multiple=1).eval()
    picture = torch.rand(1, 3, 1, 80).repeat(1, 1, 48, 1)
    felt = 0
    with torch.no_grad():
        inner.weight.mul_(0.3).add_(torch.eye(channels, 3)[..., None, None])  # small changes, whose detail stays partly
        for column in range(28, 52):
            touched = picture.clone()
            touched[..., column] += 1
            away = (torch.nonzero((net(touched) - net(picture)).abs().amax((0, 1, 2))) - column).abs()
            felt = max(felt, int(away.max()))
    assert felt == receptive_radius(net)


def test_bands_hold_the_blended_tiles() -> None:
    picture = torch.rand(2, 50, 37)
    rows, columns = plan_axis(50, size=16, overlap=4, multiple=1), plan_axis(37, size=20, overlap=6, multiple=1)
    seen = []

    def tile(top: int, left: int) -> Tensor:
        seen.append((top, left))
        return picture[:, top : top + 16, left : left + 20].clone()

    bands = list(blend_tiles(rows, columns, tile))
    assert [top for top, _ in bands] == list(rows.starts)
    torch.testing.assert_close(torch.cat([band for _, band in bands], 1), picture)
    assert len(seen) == len(rows.starts) * len(columns.starts)


@given(st.integers(1, 30), st.integers(0, 40), st.integers(1, 60))
def test_indices_beyond_the_side_are_reflected(length: int, first: int, count: int) -> None:
    expected = np.pad(np.arange(length), (0, 100), mode="reflect")[first : first + count]
    np.testing.assert_array_equal(reflect_indices(first, first + count, length), expected)
