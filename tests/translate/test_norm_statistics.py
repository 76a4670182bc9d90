from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from velogan.networks.generators import GeneratorConfig, ResidualBlock, build_generator
from velogan.translate.norm_statistics import (
    Piece,
    fold_norms,
    has_per_image_norms,
    max_spilled_values,
    measure_moments,
)

CELLS = ("conv5", "max_pool", "conv7", "dilated3", "conv3", "conv3", "bilinear", "transposed3")


def _network(**config: Any) -> nn.Module:
    torch.manual_seed(3)
    settings = {"channels": 3, "blocks": 2, "init": "kaiming"}
    net = build_generator(GeneratorConfig.model_validate(settings | config))
    for name, value in net.named_buffers():  # batch norms that have seen something
        if name.endswith("running_mean"):
            value.normal_()
        elif name.endswith("running_var"):
            value.uniform_(0.5, 2)
    for parameter in net.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return net.eval().requires_grad_(False)


def _picture(side: int, seed: int = 0) -> Tensor:
    return torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(seed)) * 2 - 1


@pytest.mark.parametrize(
    ("config", "side"),
    [
        ({}, 32),
        ({"network": "unet_128"}, 256),
        ({"dropout": True}, 32),
        ({"norm": "instance_affine"}, 32),
        ({"output": "change", "decoder": "simple"}, 32),
        ({"output": "mask"}, 32),
        ({"output": "keep"}, 32),
        ({"decoder": "resize"}, 32),
        ({"network": "cells", "channels": 6, "operations": CELLS}, 32),
    ],
)
def test_one_piece_has_the_statistics_of_the_network(config: dict[str, Any], side: int, tmp_path: Path) -> None:
    net, picture = _network(**config), _picture(side)
    assert has_per_image_norms(net)
    plain = fold_norms(net, measure_moments(net, [Piece(lambda: picture)], scratch=tmp_path))
    assert not has_per_image_norms(plain)
    torch.testing.assert_close(plain(picture), net(picture), rtol=0, atol=2e-4)


def test_measures_pieces_together(tmp_path: Path) -> None:
    """Two pictures that are normalised as one: what batch norm does in training."""
    net, pictures = _network(), [_picture(32, seed) * (0.2 + seed) for seed in (0, 1)]
    together = _network()
    for parent in list(together.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.InstanceNorm2d):
                setattr(parent, name, nn.BatchNorm2d(child.num_features, affine=False))
    together.train()
    plain = fold_norms(
        net, measure_moments(net, [Piece(lambda picture=picture: picture) for picture in pictures], scratch=tmp_path)
    )
    expected = together(torch.cat(pictures))
    for picture, result in zip(pictures, expected):
        torch.testing.assert_close(plain(picture)[0], result, rtol=0, atol=1e-4)
    assert not torch.allclose(net(pictures[0])[0], expected[0], atol=1e-2)  # alone it looks different


def test_measures_only_the_core_of_pieces(tmp_path: Path) -> None:
    net, picture = _network(), _picture(64)
    left, right = picture[..., :48].clone(), picture[..., 16:].clone()
    pieces = [Piece(lambda: left, (0, 1, 0, 32 / 48)), Piece(lambda: right, (0, 1, 16 / 48, 1))]
    for (mean, variance), (whole_mean, whole_variance) in zip(
        measure_moments(net, pieces, scratch=tmp_path)[:1],
        measure_moments(net, [Piece(lambda: picture)], scratch=tmp_path),
    ):
        torch.testing.assert_close(mean, whole_mean)
        torch.testing.assert_close(variance, whole_variance)


def test_folds_batch_norms_with_their_own_statistics() -> None:
    net, picture = _network(norm="batch"), _picture(32)
    assert not has_per_image_norms(net)
    plain = fold_norms(net)
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in plain.modules())
    torch.testing.assert_close(plain(picture), net(picture), rtol=0, atol=1e-4)
    assert any(isinstance(layer, nn.BatchNorm2d) for layer in net.modules())


def test_keeps_instance_norms_without_statistics() -> None:
    net, picture = _network(), _picture(32)
    assert torch.equal(fold_norms(net)(picture), net(picture))


def test_bfloat16_measures_almost_the_same(tmp_path: Path) -> None:
    net, picture = _network(), _picture(32)
    exact, rough = (
        measure_moments(net, [Piece(lambda: picture)], scratch=tmp_path, dtype=d)
        for d in (torch.float32, torch.bfloat16)
    )
    for (_, first), (_, second) in zip(exact, rough):
        torch.testing.assert_close(first, second, rtol=0.1, atol=1e-2)
    assert not torch.equal(exact[-1][1], rough[-1][1])


class _Plus(nn.Module):
    """`x + model(x)`, and does not say so."""

    def __init__(self, *, norm: type[nn.Module]):
        super().__init__()
        self.model = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), norm(3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.model(x)


class _HalfResidual(ResidualBlock):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x + self.conv_block(x)


def _undeclared(name: str) -> nn.Module:
    block = _HalfResidual(3, norm="instance", dropout=False)
    hooked = nn.Sequential(nn.Conv2d(3, 3, 1), nn.InstanceNorm2d(3))
    hooked[1].register_forward_hook(lambda module, inputs, output: output.mul(2))
    return {"x + model(x)": _Plus(norm=nn.InstanceNorm2d), "another forward": block, "hook": hooked}[name].eval()


@pytest.mark.parametrize("name", ["x + model(x)", "another forward", "hook"])
def test_rejects_norms_in_undeclared_modules(name: str, tmp_path: Path) -> None:
    net, picture = nn.Sequential(nn.Conv2d(3, 3, 1), nn.InstanceNorm2d(3), _undeclared(name)), _picture(16)
    for way in (
        lambda: measure_moments(net, [Piece(lambda: picture)], scratch=tmp_path),
        lambda: max_spilled_values(net, 3),
    ):
        with pytest.raises(ValueError, match=r"^2\..* would normalise each tile by itself.*: set tile=0"):
            way()
    torch.testing.assert_close(fold_norms(net)(picture), net(picture))


def test_rejects_group_norms(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(4, 4, 1), nn.GroupNorm(2, 4))
    with pytest.raises(ValueError, match=r"^1 \(GroupNorm\) would normalise each tile by itself"):
        measure_moments(net, [Piece(lambda: torch.rand(1, 4, 8, 8))], scratch=tmp_path)


def test_keeps_batch_norms_in_undeclared_modules() -> None:
    torch.manual_seed(0)
    net, picture = nn.Sequential(nn.Conv2d(3, 3, 1), _Plus(norm=nn.BatchNorm2d)).eval(), _picture(16)
    net.get_submodule("1.model.1").get_buffer("running_mean").normal_()
    torch.testing.assert_close(fold_norms(net)(picture), net(picture))


def test_norms_without_a_convolution_become_batch_norms(tmp_path: Path) -> None:
    torch.manual_seed(0)
    affine = nn.InstanceNorm2d(4, affine=True)
    nn.init.normal_(affine.weight)
    nn.init.normal_(affine.bias)
    net = nn.Sequential(nn.InstanceNorm2d(3), nn.Conv2d(3, 4, 1), nn.ReLU(), affine, nn.Tanh(), nn.InstanceNorm2d(4))
    net, picture = net.eval().requires_grad_(False), _picture(16)
    plain = fold_norms(net, measure_moments(net, [Piece(lambda: picture)], scratch=tmp_path))
    assert not has_per_image_norms(plain)
    torch.testing.assert_close(plain(picture), net(picture), rtol=0, atol=1e-4)
