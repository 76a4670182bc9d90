"""Exports compute what PyTorch computes; the card states what was measured and how to run them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from velogan.interchange import export as exports
from velogan.interchange.bundle import ExportOptions, write_export
from velogan.interchange.export import SUFFIXES, Format, export, load_onnx
from velogan.networks.build import build_network
from velogan.networks.discriminators import DiscriminatorConfig
from velogan.networks.generators import GeneratorConfig
from velogan.store.checkpoint import load_weights, mark_best, save_checkpoint
from velogan.translate.memory import translate_images
from velogan.translate.model import Translator, load_translator

MISSING = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
onnx = pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed: the extra onnx")

NETWORKS: dict[str, dict[str, Any]] = {
    "resnet": {"blocks": 1, "channels": 2, "dropout": True},
    "unet": {"network": "unet_128", "channels": 2, "norm": "batch"},
    "change": {"blocks": 1, "channels": 2, "norm": "none", "output": "change"},
    "keep": {"blocks": 1, "channels": 2, "output": "keep"},
    "mask": {"blocks": 1, "channels": 2, "output": "mask", "decoder": "resize", "padding": "reflect"},
    "cells": {"network": "cells", "channels": 8, "blocks": 1},
    "anti-aliased": {"blocks": 0, "channels": 2, "antialias": "both"},
}
"""Kinds of generators of the methods and presets."""


def _header(role: str = "G_A", **fields: Any) -> dict[str, Any]:
    config = GeneratorConfig.model_validate({"init": "kaiming", **fields}).model_dump(mode="json")
    return {"role": role, "network": "generator", "config": config, "in_channels": 3, "out_channels": 3}


def _translator(**fields: Any) -> Translator:
    torch.manual_seed(0)
    header = _header(**fields)
    net: Any = build_network(header).eval().requires_grad_(False)
    return Translator(net, multiple=net.multiple, device=torch.device("cpu"), header=header)


def _run(tmp_path: Path, *, judge: str = "basic", blocks: int = 6) -> Path:
    """A run of two directions with averages, as training leaves it."""
    torch.manual_seed(0)
    config = DiscriminatorConfig.model_validate({"network": judge, "channels": 2}).model_dump(mode="json")
    headers = {name: _header(name[:3], blocks=blocks, channels=2) for name in ("G_A", "G_B", "G_A.ema", "G_B.ema")}
    judges = {"network": "discriminator", "config": config, "in_channels": 3}
    headers |= {name: {"role": name, **judges} for name in ("D_A", "D_B")}
    nets = {name: build_network(header) for name, header in headers.items()}
    save_checkpoint(tmp_path / "run", images=5, networks=nets, headers=headers, state={}, clock={})
    return tmp_path / "run"


CASES: list[tuple[Format, str]] = [(format, name) for format in ("onnx", "torch") for name in NETWORKS]
USUAL = {
    ("onnx", "resnet"),
    ("onnx", "unet"),
    ("onnx", "mask"),
    ("onnx", "cells"),
    ("torch", "resnet"),
    ("torch", "mask"),
}


@pytest.mark.parametrize(
    ("format", "name"),
    [
        pytest.param(*case, marks=[onnx] * (case[0] == "onnx") + [pytest.mark.soak] * (case not in USUAL))
        for case in CASES
    ],
)
def test_exported_file_computes_the_same_at_any_size_clipped(format: Format, name: str, tmp_path: Path):
    model = _translator(**NETWORKS[name])
    if name == "mask":  # a weak mask suppresses fine detail, so that results exceed 1
        [layer for layer in model.net.modules() if isinstance(layer, nn.Conv2d)][-1].bias[-1] -= 1  # pyright: ignore[reportOptionalSubscript]
    exported = export(model, tmp_path / f"net{SUFFIXES[format]}", format=format)
    assert exported.max_difference < 1e-4
    assert len(exported.sizes) == 3
    assert [path.name for path in tmp_path.iterdir()] == [exported.file.name]
    images = (torch.rand(3, 3, *((20, 24) if model.multiple == 4 else (256, 128))) - 0.5).sign()
    run = load_onnx if format == "onnx" else lambda file: torch.export.load(file).module(check_guards=False)
    plain = model.net(images)
    assert plain.std() > 0.01
    assert name != "mask" or plain.abs().max() > 1
    torch.testing.assert_close(run(exported.file)(images), plain.clamp(-1, 1), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("format", "channels"), [pytest.param("onnx", 3, marks=onnx), ("torch", 1)])
def test_card_states_what_was_measured_and_its_code_runs(
    format: Format, channels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    form = {"channels": channels, "dtype": "uint8"}
    header = _header(**NETWORKS["mask"]) | {"input": form, "output": form, "in_channels": channels}
    header["out_channels"] = channels
    torch.manual_seed(0)
    net = build_network(header)
    save_checkpoint(tmp_path / "run", images=5, networks={"G_A": net}, headers={"G_A": header}, state={}, clock={})
    file = tmp_path / f"net{SUFFIXES[format]}"
    result = write_export(tmp_path / "run", file, format=format)
    card = Path(result["card"]).read_text()
    assert result["megabytes"] == pytest.approx(file.stat().st_size / 1e6, abs=1e-3)
    assert result["card"] == f"{file}.md"
    for part in ("| a2b |", "64x64, 128x64, 64x100", "width 2", "H and W are multiples of 4"):
        assert part in card
    assert f"at most {result['max_difference']:.2g} from" in card or "no difference at all" in card

    photo = np.random.default_rng(0).integers(0, 256, (21, 30, channels), np.uint8).squeeze()
    Image.fromarray(photo).save(tmp_path / "photo.jpg", quality=100)
    monkeypatch.chdir(tmp_path)
    exec(card.split("```python\n")[1].split("```")[0], {})
    expected = translate_images(load_translator(tmp_path / "run"), Image.open("photo.jpg"))
    difference = np.asarray(Image.open("translated.png")).astype(int) - np.asarray(expected)
    assert np.abs(difference).max() <= 1


@onnx
def test_onnx_file_has_metadata(tmp_path: Path):
    import onnx as library

    model = _translator(**NETWORKS["resnet"])
    exported = export(model, tmp_path / "net.onnx", format="onnx", license="mit")
    loaded = library.load(exported.file)
    metadata = {item.key: item.value for item in loaded.metadata_props}
    assert (metadata["direction"], metadata["license"], metadata["multiple"]) == ("a2b", "mit", "4")
    assert metadata["range"].startswith("[-1, 1]")


@pytest.mark.parametrize(("out", "file"), [("mine.pth", "mine.pth"), ("mine", "mine/README.md")])
def test_rejects_output_that_is_not_an_export(out: str, file: str, tmp_path: Path):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("precious")
    with pytest.raises(ValueError, match=f"{file} exists and"):
        write_export(_run(tmp_path), tmp_path / out, format="reference")
    assert (tmp_path / file).read_text() == "precious"
    assert out != "mine" or [path.name for path in (tmp_path / "mine").iterdir()] == ["README.md"]


def test_reference_export_equals_the_run(tmp_path: Path):
    run = _run(tmp_path)
    result = write_export(run, tmp_path / "out", format="reference")
    assert result["max_difference"] == 0
    names = {f"latest_net_{role}.pth" for role in ("G_A", "G_B", "D_A", "D_B")}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*names, "README.md"}
    assert "--netG resnet_6blocks --ngf 2" in (tmp_path / "out" / "README.md").read_text()
    write_export(run, tmp_path / "out", format="reference")  # over its own card
    state = torch.load(tmp_path / "out" / "latest_net_G_B.pth", weights_only=True)
    ema = load_translator(run, direction="b2a").net.state_dict()
    assert all(torch.equal(state[name], value) for name, value in ema.items())
    back = load_translator(tmp_path / "out" / "latest_net_G_B.pth", direction="b2a")
    assert torch.equal(back.net.state_dict()["model.1.weight"], ema["model.1.weight"])
    single = write_export(
        run, tmp_path / "one.pth", format="reference", options=ExportOptions(direction="b2a", weights="raw")
    )
    assert Path(single["card"]).read_text().count("| b2a |") == 1
    odd = write_export(_run(tmp_path / "two", blocks=2), tmp_path / "odd", format="reference")
    assert "--netG resnet_9blocks (with n_blocks=2 in its define_G) --ngf 2" in Path(odd["card"]).read_text()


def test_discriminators_come_from_the_same_checkpoint_as_generators(tmp_path: Path):
    run = _run(tmp_path)
    first = run / "checkpoints" / "000000005"
    write_export(run, tmp_path / "only", format="reference")
    headers, later = {}, {}
    for name in ("G_A", "G_B", "G_A.ema", "G_B.ema", "D_A", "D_B"):
        headers[name], weights = load_weights(first / f"{name}.safetensors")
        later[name] = build_network(headers[name])
        later[name].load_state_dict({key: value + 1 for key, value in weights.items()})
    save_checkpoint(run, images=9, networks=later, headers=headers, state={}, clock={})
    mark_best(run, checkpoint=first, name="x", score=1.0, scored_on="y")
    write_export(run, tmp_path / "best", format="reference", options=ExportOptions(checkpoint="best"))
    for role in ("G_A", "D_A", "D_B"):
        only, best = (torch.load(tmp_path / folder / f"latest_net_{role}.pth") for folder in ("only", "best"))
        assert all(torch.equal(best[key], value) for key, value in only.items()), role


def test_rejects_an_export_that_differs_and_removes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def wrong(model: Translator, file: Path) -> tuple[Any, str]:
        file.write_bytes(b"wrong")
        return (lambda images: model.net(images) + 0.01), "another program"

    monkeypatch.setattr(exports, "_write_torch", wrong)
    with pytest.raises(ValueError, match=r"results of another program differ by 0\.01"):
        export(_translator(blocks=1, channels=2), tmp_path / "net.pt2", format="torch")
    assert not list(tmp_path.iterdir())
