"""Exports run as other programs run them, and compute what PyTorch computes; the card says what was measured."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from velogan.interchange import export as exports
from velogan.interchange.bundle import ExportOptions, write_export
from velogan.interchange.export import SUFFIXES, Format, export
from velogan.networks.build import build_network
from velogan.networks.discriminators import DiscriminatorConfig
from velogan.networks.generators import GeneratorConfig
from velogan.store.checkpoint import load_weights, mark_best, save_checkpoint
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
"""What the methods and presets make: CycleGAN's two kinds, the one-pair method's, that of `fast`, a search's; CUT's."""


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
def test_another_program_computes_the_same_at_any_size(format: Format, name: str, tmp_path: Path):
    model = _translator(**NETWORKS[name])
    made = export(model, tmp_path / f"net{SUFFIXES[format]}", format=format)
    assert made.max_difference < 1e-4
    assert len(made.sizes) == 3
    assert [path.name for path in tmp_path.iterdir()] == [made.file.name]
    images = torch.rand(3, 3, *((20, 24) if model.multiple == 4 else (256, 128))) * 2 - 1
    if format == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(made.file), providers=["CPUExecutionProvider"])
        result = torch.from_numpy(session.run(None, {"image": images.numpy()})[0])
    else:
        result = torch.export.load(made.file).module(check_guards=False)(images)
    assert model.net(images).std() > 0.01
    torch.testing.assert_close(result, model.net(images), atol=1e-4, rtol=0)


@onnx
def test_an_onnx_file_says_what_it_takes_and_is_of_the_opset_asked_for(tmp_path: Path):
    import onnx as library

    model = _translator(**NETWORKS["resnet"])
    made = export(model, tmp_path / "net.onnx", format="onnx", opset=20, license="mit")
    loaded = library.load(made.file)
    assert [one.version for one in loaded.opset_import if not one.domain] == [20]
    told = {one.key: one.value for one in loaded.metadata_props}
    assert (told["direction"], told["license"], told["multiple"]) == ("a2b", "mit", "4")
    assert told["range"].startswith("[-1, 1]")
    with pytest.raises(ValueError, match=r"opset=3 is not supported: give one from 18 to \d+"):
        export(model, tmp_path / "old.onnx", format="onnx", opset=3)
    with pytest.raises(ValueError, match="opset=20 requires format=onnx"):
        export(model, tmp_path / "net.pt2", format="torch", opset=20)


def test_a_file_of_others_is_not_overwritten(tmp_path: Path):
    (tmp_path / "mine.pth").write_text("precious")
    with pytest.raises(ValueError, match=r"mine.pth exists and has no model card of velogan"):
        write_export(_run(tmp_path), tmp_path / "mine.pth", format="reference")
    assert (tmp_path / "mine.pth").read_text() == "precious"


def test_a_run_becomes_a_folder_of_the_reference_and_back(tmp_path: Path):
    run = _run(tmp_path)
    told = write_export(run, tmp_path / "out", format="reference")
    assert told["max_difference"] == 0
    names = {f"latest_net_{role}.pth" for role in ("G_A", "G_B", "D_A", "D_B")}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*names, "README.md"}
    assert "--netG resnet_6blocks --ngf 2" in (tmp_path / "out" / "README.md").read_text()
    write_export(run, tmp_path / "out", format="reference")  # over its own card
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").write_text("my words")
    with pytest.raises(ValueError, match=r"README.md exists and would be overwritten by the model card"):
        write_export(run, tmp_path / "mine", format="reference")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["README.md"]
    state = torch.load(tmp_path / "out" / "latest_net_G_B.pth", weights_only=True)
    ema = load_translator(run, direction="b2a").net.state_dict()
    assert all(torch.equal(state[name], value) for name, value in ema.items())
    back = load_translator(tmp_path / "out" / "latest_net_G_B.pth", direction="b2a")
    assert torch.equal(back.net.state_dict()["model.1.weight"], ema["model.1.weight"])
    one = write_export(
        run, tmp_path / "one.pth", format="reference", options=ExportOptions(direction="b2a", weights="raw")
    )
    assert Path(one["card"]).read_text().count("| b2a |") == 1
    odd = write_export(_run(tmp_path / "two", blocks=2), tmp_path / "odd", format="reference")
    assert "--netG resnet_9blocks (with n_blocks=2 in its define_G) --ngf 2" in Path(odd["card"]).read_text()


def test_discriminators_of_the_reference_are_of_the_generators_checkpoint(tmp_path: Path):
    run = _run(tmp_path)
    first = run / "checkpoints" / "000000005"
    write_export(run, tmp_path / "only", format="reference")
    headers, later = {}, {}
    for name in ("G_A", "G_B", "G_A.ema", "G_B.ema", "D_A", "D_B"):
        headers[name], weights = load_weights(first / f"{name}.safetensors")
        later[name] = build_network(headers[name])
        later[name].load_state_dict({key: one + 1 for key, one in weights.items()})
    save_checkpoint(run, images=9, networks=later, headers=headers, state={}, clock={})
    mark_best(run, checkpoint=first, name="x", score=1.0, on="y")
    write_export(run, tmp_path / "best", format="reference", options=ExportOptions(checkpoint="best"))
    for role in ("G_A", "D_A", "D_B"):
        only, best = (torch.load(tmp_path / one / f"latest_net_{role}.pth") for one in ("only", "best"))
        assert all(torch.equal(best[key], value) for key, value in only.items()), role


def test_a_discriminator_that_the_reference_has_not_is_left_out_and_said(tmp_path: Path):
    run = _run(tmp_path, judge="cells")
    told = write_export(run, tmp_path / "out", format="reference")
    assert "Left out, since the format has no such network: D_A, D_B." in Path(told["card"]).read_text()
    assert not list((tmp_path / "out").glob("*_D_*"))


def test_the_card_states_what_was_measured(tmp_path: Path):
    told = write_export(
        _run(tmp_path, blocks=1), tmp_path / "net.pt2", format="torch", options=ExportOptions(direction="b2a")
    )
    text = Path(told["card"]).read_text()
    assert told["megabytes"] == pytest.approx((tmp_path / "net.pt2").stat().st_size / 1e6, abs=1e-3)
    assert told["card"] == str(tmp_path / "net.pt2.md")
    for part in ("| b2a |", "64x64, 128x64, 64x100", "resnet of 1 blocks, width 2", "multiples of 4", "torch.export"):
        assert part in text
    assert f"at most {told['max_difference']:.2g} from" in text or "no difference at all" in text


def test_the_card_says_how_slices_of_volumes_become_what_the_network_takes(tmp_path: Path):
    scan = {"channels": 3, "dtype": "float32", "range": [0, 1000], "own_scale": True, "neighbours": 1}
    header = _header(blocks=1, channels=2) | {"input": scan, "output": {"channels": 3, "dtype": "float32"}}
    net = build_network(header)
    save_checkpoint(tmp_path / "run", images=5, networks={"G_A": net}, headers={"G_A": header}, state={}, clock={})
    text = Path(write_export(tmp_path / "run", tmp_path / "out", format="hub")["card"]).read_text()
    assert (
        "| float32 [0, 1000] (which percentiles 0.5 and 99.5 of each volume's own values become; channels from "
        "below to above: 1 slice below, the slice, 1 above) in, float32, whole range out, for -1 to 1 |" in text
    )


def test_what_differs_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def wrong(model: Translator, file: Path) -> tuple[Any, str]:
        file.write_bytes(b"wrong")
        return (lambda images: model.net(images) + 0.01), "a liar"

    monkeypatch.setattr(exports, "_torch", wrong)
    with pytest.raises(ValueError, match=r"results of a liar differ by 0\.01"):
        export(_translator(blocks=1, channels=2), tmp_path / "net.pt2", format="torch")
    assert not list(tmp_path.iterdir())


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("velogan.files.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs onnx, onnxscript, onnxruntime: .*pip install -e '\.\[onnx\]'"):
        write_export(_run(tmp_path), tmp_path / "net.onnx", format="onnx")
