from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from velogan.networks.generators import GeneratorConfig, build_generator
from velogan.store.checkpoint import save_checkpoint
from velogan.translate.model import Translator, load_translator

from ..models import in_memory

CONFIG = GeneratorConfig.model_validate({"blocks": 1, "channels": 2})


def _checkpoint(run: Path, *, images: int = 10, averages: bool = True) -> tuple[Path, dict[str, nn.Module]]:
    names = ["G_A", "G_B", "G_A.ema", "G_B.ema"] if averages else ["G_A", "G_B"]
    networks: dict[str, nn.Module] = {name: build_generator(CONFIG) for name in names}
    for seed, net in enumerate(networks.values()):
        generator = torch.Generator().manual_seed(images + seed)
        for parameter in net.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
    networks["D_A"] = nn.Conv2d(3, 1, 1)
    headers = {
        name: {
            "role": name.removesuffix(".ema"),
            "network": "generator",
            "config": CONFIG.model_dump(),
            "images_seen": images,
        }
        for name in networks
    }
    return save_checkpoint(run, images=images, networks=networks, headers=headers, state={}, clock={}), networks


def _same(translator: Translator, net: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(translator.net.parameters(), net.parameters()))


def test_loads_the_newest_averaged_generator(tmp_path: Path) -> None:
    _checkpoint(tmp_path, images=9)
    folder, networks = _checkpoint(tmp_path, images=10)
    translator = load_translator(tmp_path)
    assert _same(translator, networks["G_A.ema"])
    assert translator.file == folder / "G_A.ema.safetensors"
    assert translator.header["images_seen"] == 10
    assert translator.multiple == 4
    assert not translator.net.training
    assert _same(load_translator(tmp_path, direction="b2a", weights="raw"), networks["G_B"])
    assert _same(load_translator(folder, direction="b2a"), networks["G_B.ema"])


def test_rejects_unknown_choices(tmp_path: Path) -> None:
    _checkpoint(tmp_path)
    wrong: dict[str, Any] = {"weights": "RAW", "checkpoint": "bst", "direction": "ab"}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=f"{name}={value}: choose"):
            load_translator(tmp_path, **{name: value})


def test_uses_tf32_only_if_rounded_to_8_bits() -> None:
    def seen(device: str, *, rounded: bool) -> bool:
        net = build_generator(CONFIG)
        with Translator(net, multiple=4, device=torch.device(device)).tf32_disabled(rounded=rounded):
            return torch.backends.cudnn.allow_tf32

    before = torch.backends.cudnn.allow_tf32
    assert seen("cuda", rounded=False) is False
    assert seen("cuda", rounded=True) is seen("cpu", rounded=False) is torch.backends.cudnn.allow_tf32 is before


def test_loads_raw_weights_if_there_are_no_averages(tmp_path: Path) -> None:
    _, networks = _checkpoint(tmp_path, averages=False)
    assert _same(load_translator(tmp_path), networks["G_A"])
    with pytest.raises(ValueError, match=r"no G_A\.ema\.safetensors, only .*G_A\.safetensors.*: use weights=raw"):
        load_translator(tmp_path, weights="ema")


def test_files_have_a_direction(tmp_path: Path) -> None:
    folder, networks = _checkpoint(tmp_path)
    assert _same(load_translator(folder / "G_B.safetensors"), networks["G_B"])
    with pytest.raises(ValueError, match=r"direction=a2b needs G_A, but .* contains G_B"):
        load_translator(folder / "G_B.safetensors", direction="a2b")
    with pytest.raises(ValueError, match="'D_A', which is not a generator"):
        load_translator(folder / "D_A.safetensors")


def test_rejects_missing_paths(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist: name a run folder"):
        load_translator(tmp_path / "absent")


@pytest.mark.parametrize(("height", "width"), [(64, 64), (30, 45), (5, 100), (1, 1)])
def test_pads_any_size_by_reflection_and_crops(height: int, width: int) -> None:
    padded: list[Tensor] = []
    net = nn.Identity()
    net.register_forward_hook(lambda *call: padded.append(call[-1]))
    images = torch.rand(2, 3, height, width)
    assert torch.equal(in_memory(net, multiple=32)(images), images)
    padding = [(0, 0), (0, 0), (0, -height % 32), (0, -width % 32)]
    np.testing.assert_array_equal(padded[0].numpy(), np.pad(images.numpy(), padding, mode="reflect"))


def test_translates_the_smallest_image(tmp_path: Path) -> None:
    _checkpoint(tmp_path)
    assert load_translator(tmp_path)(torch.zeros(1, 3, 1, 3)).shape == (1, 3, 1, 3)
