"""Recognises networks of the reference implementation and of CUT from their weights, and converts back."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from velogan.networks.build import build_network
from velogan.networks.discriminators import DiscriminatorConfig
from velogan.networks.generators import GeneratorConfig
from velogan.networks.pickles import read_tensors
from velogan.networks.reference import recognise, reference_flags, to_reference
from velogan.translate.weights import load_networks


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = _load("reference_networks")

GENERATORS: list[tuple[str, dict[str, Any], dict[str, Any], int]] = [
    ("Resnet", {"blocks": 9}, {"blocks": 9, "norm": "instance", "dropout": False, "channels": 4}, 32),
    ("Resnet", {"dropout": True, "norm": "batch", "width": 6}, {"dropout": True, "norm": "batch", "channels": 6}, 32),
    ("Resnet", {"norm": "none", "c_in": 1, "c_out": 4, "blocks": 2}, {"norm": "none", "blocks": 2}, 32),
    ("Resnet", {"norm": "none", "dropout": True, "blocks": 1}, {"norm": "none", "dropout": True}, 32),
    ("Resnet", {"blur": ("down", "up"), "blocks": 9}, {"antialias": "both", "blocks": 9, "norm": "instance"}, 36),
    ("Resnet", {"blur": ("down",), "norm": "batch", "dropout": True}, {"antialias": "down", "dropout": True}, 32),
    ("Resnet", {"blur": ("up",), "norm": "none", "blocks": 0, "c_in": 1}, {"antialias": "up", "norm": "none"}, 32),
    ("Unet", {}, {"network": "unet_128", "channels": 2, "norm": "instance"}, 128),
    ("Unet", {"downs": 8, "norm": "batch", "dropout": True, "c_in": 1}, {"network": "unet_256", "norm": "batch"}, 256),
    ("Unet", {"norm": "none", "width": 3}, {"network": "unet_128", "norm": "none", "channels": 3}, 128),
]
DISCRIMINATORS: list[tuple[str, dict[str, Any], dict[str, Any], int]] = [
    ("Patch", {}, {"network": "basic", "norm": "instance", "channels": 4}, 64),
    ("Patch", {"layers": 5, "norm": "batch", "c_in": 6}, {"network": "n_layers", "layers": 5, "norm": "batch"}, 128),
    ("Patch", {"layers": 1, "norm": "none"}, {"network": "n_layers", "layers": 1, "norm": "none"}, 64),
    ("Patch", {"blur": True}, {"network": "basic", "norm": "instance", "antialias": True}, 64),
    ("Patch", {"blur": True, "layers": 1, "norm": "batch"}, {"layers": 1, "norm": "batch", "antialias": True}, 63),
    ("Pixel", {"norm": "batch"}, {"network": "pixel", "norm": "batch"}, 16),
    ("Pixel", {}, {"network": "pixel", "norm": "instance"}, 16),
]


def _rebuilt(state: dict[str, Tensor]) -> tuple[nn.Module, dict[str, Any]]:
    network = recognise(state, file="it")
    net = build_network(network.header)
    net.load_state_dict(network.state)
    return net.eval(), network.header


@pytest.mark.parametrize(("kind", "fields", "expected", "side"), GENERATORS + DISCRIMINATORS)
def test_recognised_networks_compute_the_same_bit_for_bit(
    kind: str, fields: dict[str, Any], expected: dict[str, Any], side: int, tmp_path: Path
):
    original = reference.trained(getattr(reference, kind)(**fields))
    torch.save(original.state_dict(), tmp_path / "latest_net_X.pth")
    net, header = _rebuilt(read_tensors(tmp_path / "latest_net_X.pth"))
    assert {name: header["config"][name] for name in expected} == expected
    images = torch.rand(2, fields.get("c_in", 3), side, side) * 2 - 1
    with torch.no_grad():
        result = net(images)
        assert torch.equal(result, original(images))
    assert result.std() > 0.001

    original.load_state_dict(to_reference(recognise(original.state_dict(), file="it")))
    with torch.no_grad():
        assert torch.equal(result, original(images))
    flag = f"--norm{kind[0].replace('R', 'G').replace('P', 'D')}" if fields.get("blur") else "--norm"
    assert f"{flag} {header['config']['norm']}" in reference_flags(header)


@pytest.mark.parametrize("kind", ["Resnet", "Unet", "Patch", "Pixel"])
@pytest.mark.parametrize("prefix", ["", "module._orig_mod."])
def test_ignores_old_statistics_and_prefixes_of_wrappers(kind: str, prefix: str):
    net = getattr(reference, kind)(norm="old instance")
    plain, old = getattr(reference, kind)().state_dict(), {f"{prefix}{name}": v for name, v in net.state_dict().items()}
    assert any("running_mean" in name for name in old)
    network = recognise(old, file="it")
    assert network.header["config"]["norm"] == "instance"
    assert len(network.state) == len(plain)
    assert network.num_parameters == sum(value.numel() for value in plain.values())


def _changed(state: dict[str, Tensor], **changes: Tensor | None) -> dict[str, Tensor]:
    return {name: value for name, value in {**state, **changes}.items() if value is not None}


RESNET = reference.Resnet(blocks=1).state_dict()
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"conv.weight": torch.zeros(1)}, r"unexpected key 'conv.weight' of shape \(1,\)"),
    (_changed(RESNET, **{"model.4.bias": None}), "the key 'model.4.bias' is missing"),
    (_changed(RESNET, **{"model.4.weight": torch.zeros(8, 4, 5, 5)}), r"'model.4.weight' has shape \(8, 4, 5, 5\)"),
    (_changed(RESNET, **{"model.10.conv_block.0.weight": torch.zeros(1)}), "zero padding"),
    ({"model.model.0.weight": torch.zeros(2, 3, 4, 4)}, "a U-Net of 1 levels"),
]


@pytest.mark.parametrize(("state", "message"), WRONG)
def test_rejects_unknown_networks_with_the_key(state: dict[str, Tensor], message: str):
    with pytest.raises(ValueError, match=message):
        recognise(state, file="it")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"network": "generator", "config": {"output": "mask"}}, "no generator with output=mask"),
        ({"network": "discriminator", "config": {"norm": "spectral"}}, "no discriminator with norm=spectral"),
        ({"network": "projection", "config": {}}, "no projection"),
    ],
)
def test_rejects_networks_that_the_reference_lacks(header: dict[str, Any], message: str):
    kind = GeneratorConfig if header["network"] == "generator" else DiscriminatorConfig
    config = kind().model_dump(mode="json") | header["config"]
    with pytest.raises(ValueError, match=message):
        reference_flags({**header, "config": config, "in_channels": 3, "out_channels": 3})


def test_loads_the_latest_networks_of_a_folder(tmp_path: Path):
    for epoch, seed in (("5", 1), ("10", 2), ("iter_3", 3)):
        for role, net in (("G_A", reference.Resnet(blocks=1)), ("D_A", reference.Patch())):
            torch.save(reference.trained(net, seed).state_dict(), tmp_path / f"{epoch}_net_{role}.pth")
    expected = reference.trained(reference.Resnet(blocks=1), 2).state_dict()
    networks = load_networks(tmp_path)
    assert set(networks) == {"G_A", "D_A"}
    assert torch.equal(networks["G_A"].state["model.1.weight"], expected["model.1.weight"])
    torch.save(reference.trained(reference.Resnet(blocks=1), 9).state_dict(), tmp_path / "latest_net_G.pth")
    assert set(load_networks(tmp_path)) == {"G_A"}
    torch.save(reference.Patch().state_dict(), tmp_path / "latest_net_G.pth")
    with pytest.raises(ValueError, match="contains a discriminator, but its name says otherwise"):
        load_networks(tmp_path)
