from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from velogan.networks.generators import GeneratorConfig, build_generator
from velogan.translate import large
from velogan.translate.large import plan_tiles, translate_large
from velogan.translate.model import Translator
from velogan.translate.tiles import reflect_indices

from ..models import in_memory


def _translator(**config: Any) -> Translator:
    torch.manual_seed(1)
    settings = {"channels": 4, "blocks": 1, "init": "kaiming"}
    net = build_generator(GeneratorConfig.model_validate(settings | config)).eval().requires_grad_(False)
    return Translator(net, multiple=net.multiple, device=torch.device("cpu"))


def _picture(height: int, width: int) -> Tensor:
    """Different in each of its parts, as pictures are: (1, 3, H, W) in [-1, 1]."""
    down, across = torch.arange(height)[:, None] / height, torch.arange(width) / width
    noise = torch.rand(3, height, width, generator=torch.Generator().manual_seed(0)) - 0.5
    waves = torch.stack([torch.sin(9 * down * across * k) for k in (1, 3, 5)])
    return (0.7 * waves + noise * across).clamp(-1, 1)[None]


def _tiled(model: Translator, picture: Tensor, *, tile: int) -> Tensor:
    height, width = picture.shape[2:]
    tiles = plan_tiles(model, height, width, tile=tile)
    assert tiles is not None
    assert len(tiles[0].starts) * len(tiles[1].starts) > 1

    def read(down: tuple[int, int], across: tuple[int, int]) -> Tensor:
        return picture[:, :, reflect_indices(*down, height)][..., reflect_indices(*across, width)]

    with tempfile.TemporaryDirectory() as folder:
        bands = translate_large(model, tiles, read, rounded=False, scratch=Path(folder))
        result = torch.cat([band for _, band in bands], 1)[:, :height, :width]
        assert not list(Path(folder).iterdir())
    return result


@pytest.mark.parametrize(
    ("config", "size", "least"),
    [
        ({}, (256, 256), 1),
        ({}, (41, 301), 1),
        ({"output": "change", "decoder": "simple"}, (256, 256), 0.3),
        ({"output": "mask", "decoder": "resize"}, (256, 256), 0.3),
    ],
)
def test_tiles_equal_one_pass(config: dict[str, Any], size: tuple[int, int], least: float) -> None:
    """`least`: mean difference in levels if each tile has its own statistics."""
    model, picture = _translator(**config), _picture(*size)
    expected = model(picture)[0]
    difference = (_tiled(model, picture, tile=168) - expected).abs() * 127.5
    assert difference.max() < 0.1  # levels of 255
    assert (_alone(model, picture, 168) - expected).abs().mean() * 127.5 > least


def test_tiles_of_a_u_net_are_similar_to_one_pass() -> None:
    model, picture = _translator(network="unet_128", channels=2), _picture(256, 640)
    result, expected = _tiled(model, picture, tile=256), model(picture)[0]
    assert result.shape == (3, 256, 640)
    assert (result - expected).abs().mean() < 0.1 * expected.std()


def _alone(model: Translator, picture: Tensor, side: int) -> Tensor:
    """Each tile with its own statistics."""
    rows = [torch.cat([model(part) for part in row.split(side, 3)], 3) for row in picture.split(side, 2)]
    return torch.cat(rows, 2)[0]


def test_measures_samples_if_the_disk_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    model, picture = _translator(), _picture(256, 256)
    room = 256 * 256 // 4 * 4 * 2  # bytes: half of it for a quarter of the picture, one waiting float32 a pixel
    monkeypatch.setattr(large.shutil, "disk_usage", lambda _: SimpleNamespace(free=2 * room))
    monkeypatch.setattr(large, "_SAMPLE", 32)
    seen: list[int] = []
    real = large.measure_moments

    def measured(net: nn.Module, pieces: list, **rest: Any) -> Any:
        seen.append(len(pieces))
        return real(net, pieces, **rest)

    monkeypatch.setattr(large, "measure_moments", measured)
    whole = model(picture)[0]
    off = (_tiled(model, picture, tile=168) - whole).abs().mean()
    assert 9 <= seen[0] <= room // 4 // 2 // 32**2
    assert off < 0.5 * (_alone(model, picture, 64) - whole).abs().mean()


def test_blends_tiles_smaller_than_the_receptive_field() -> None:
    model, picture = _translator(), _picture(96, 96)
    whole = model(picture)[0]
    result = _tiled(model, picture, tile=48)
    assert (result - whole).abs().mean() < 0.1 * (_alone(model, picture, 48) - whole).abs().mean()
    jump = (result - whole).diff(dim=2).abs().mean((0, 1))  # of the difference, from column to column
    tiles = plan_tiles(model, 96, 96, tile=48)
    assert tiles is not None
    edges = [place for start in tiles[1].starts for place in (start - 1, start + 47) if 0 <= place < 95]
    assert jump[edges].mean() < 2 * jump.mean()


@pytest.mark.parametrize("norm", ["batch", "none"])
def test_does_not_measure_networks_without_instance_norms(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, picture = _translator(norm=norm), _picture(99, 200)
    monkeypatch.setattr(large, "measure_moments", lambda *_, **__: pytest.fail("measured"))
    off = (_tiled(model, picture, tile=168) - model(picture)[0]).abs() * 127.5
    assert off.max() < 0.01


def test_the_network_gets_single_tiles() -> None:
    sizes: list[tuple[int, ...]] = []
    net = nn.Identity()
    net.register_forward_hook(lambda module, inputs, output: sizes.append(output.shape[2:]))
    picture = _picture(90, 150)
    torch.testing.assert_close(_tiled(in_memory(net), picture, tile=40), picture[0])
    assert set(sizes) == {(40, 40)}


def test_bands_may_overwrite_the_picture(tmp_path: Path) -> None:
    model, picture = _translator(), _picture(99, 97)
    expected = _tiled(model, picture, tile=48)
    tiles = plan_tiles(model, 99, 97, tile=48)
    assert tiles is not None
    over = picture[0].clone()

    def read(down: tuple[int, int], across: tuple[int, int]) -> Tensor:
        return over[None, :, reflect_indices(*down, 99)][..., reflect_indices(*across, 97)]

    for top, band in translate_large(model, tiles, read, rounded=False, scratch=tmp_path):
        rows = over[:, top : top + band.shape[1]]
        rows[:] = band[:, : rows.shape[1], :97]
    assert torch.equal(over, expected)


def test_plans_tiles_for_large_pictures_only() -> None:
    model = _translator()
    assert plan_tiles(model, 1024, 2048, tile=None) is None
    large_one = plan_tiles(model, 1024, 2049, tile=None)
    assert large_one is not None
    assert large_one[1].size == large.DEFAULT_TILE
    assert plan_tiles(model, 9999, 9999, tile=0) is None
    assert plan_tiles(model, 64, 64, tile=64) is None
    assert plan_tiles(model, 64, 65, tile=62) is not None
    small = plan_tiles(in_memory(multiple=256), 300, 900, tile=100)
    assert small is not None
    assert small[1].size == 512
