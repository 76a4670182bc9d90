"""Runs of the method onepair: train, sample, translate, evaluate, report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from velogan.config import Config
from velogan.data.sets.sources import Folder, find_sources
from velogan.evaluation.evaluate import evaluate
from velogan.kernels.inference import Accelerator
from velogan.networks.build import build_network
from velogan.networks.generators import compose, split_stages
from velogan.networks.outputs import apply_change
from velogan.observe.log import read_stats
from velogan.observe.progress import Display
from velogan.report import write_report
from velogan.store.checkpoint import load_weights
from velogan.training.run import train
from velogan.training.session import Result
from velogan.translate.model import load_translator


def _train(config: Config, run: Path) -> Result:
    with Display() as display:
        return train(config, run, display=display, origin={"preset": "test", "command": "test"})


@pytest.fixture
def one_pair(tiny_config: Callable[..., Config]) -> Callable[..., Config]:
    """Returns a tiny configuration of the method."""

    def make(**sections: Any) -> Config:
        return tiny_config(**{**sections, "method": {"kind": "onepair", **sections.get("method", {})}})

    return make


def test_train_sample_evaluate_and_report(one_pair: Callable[..., Config], tmp_path: Path):
    run = tmp_path / "run"
    config = one_pair(train={"length": "6 images", "samples": 2}, method={"pool_size": 2})
    checkpoint = _train(config, run).checkpoint
    assert {file.stem for file in checkpoint.glob("*.safetensors")} == {"G_A", "G_A.ema", "D_A", "state"}
    losses = {name for row in read_stats(run) for name in row if name.startswith("loss/translator")}
    terms = {"deviation_target_a", "deviation_source_a", "adversarial_a", "total"}
    assert losses == {f"loss/translator/{term}" for term in terms}

    index = json.loads((run / "samples" / "index.json").read_text())
    assert index["a2b"]["columns"] == ["input", "translated", "reconstruction", "truth"]
    assert index["b2b"]["columns"] == ["input", "translated", "reconstruction"]
    grids = {file.name for file in (run / "samples").glob("000000006-*.png")}
    assert grids == {"000000006-a2b.png", "000000006-b2b.png"}

    result = evaluate(run)
    assert {score["direction"] for score in result["scores"]} == {"a2b"}
    scores = {(score["name"], score["weights"]): score["value"] for score in result["scores"]}
    names = {"psnr_object_db", "psnr_background_db", "psnr_reconstruction_db", "ssim_reconstruction"}
    assert {(name, weights) for name in names for weights in ("raw", "ema")} <= set(scores)
    assert json.loads((run / "scores.json").read_text())["scores"] == result["scores"]
    psnr = _reconstruction_psnr(compose(*split_stages(load_translator(run, weights="raw").net)[::2]), config)
    assert scores["psnr_reconstruction_db", "raw"] == pytest.approx(psnr, abs=0.05)
    page = write_report([run]).read_text()
    assert all(words in page for words in ("Reconstruction PSNR", '"reconstruction"', '"b2b"'))

    with pytest.raises(ValueError, match=r"translates a2b only"):
        load_translator(run, direction="b2a")


def _reconstruction_psnr(autoencoder: nn.Module, config: Config) -> float:
    """The mean PSNR of A's test images, encoded and decoded without the translator."""
    values, test = [], find_sources(config.data).a.test
    assert isinstance(test, Folder)
    for name in test.names:
        pixels = np.asarray(Image.open(test.directory / name).resize((32, 32), Image.Resampling.BICUBIC))
        image = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].float() / 127.5 - 1
        with torch.no_grad():
            output = ((autoencoder(image) + 1) * 127.5).round().clamp(0, 255) / 127.5 - 1
        values.append(float(10 * torch.log10(4 / (output - image).square().mean())))
    return sum(values) / len(values)


def test_both_directions_share_one_autoencoder(one_pair: Callable[..., Config], tmp_path: Path):
    run = tmp_path / "run"
    train_section, data = {"length": "8 images", "samples": 1}, {"render_count": 24}
    checkpoint = _train(one_pair(train=train_section, method={"direction": "both"}, data=data), run).checkpoint
    headers = {}
    for file in checkpoint.glob("*.safetensors"):
        if file.stem != "state":
            headers[file.stem], weights = load_weights(file)
            build_network(headers[file.stem]).load_state_dict(weights)
    fields = {name: (header.get("judges"), header.get("sees"), "input" in header) for name, header in headers.items()}
    assert fields["D_A"] == ("B", "encodings", False)
    assert fields["D_B"] == ("A", "encodings", False)
    assert fields["G_A"] == (None, None, True)
    a, b = (load_weights(checkpoint / f"{name}.ema.safetensors")[1] for name in ("G_A", "G_B"))
    assert a.keys() == b.keys()
    different = {name for name in a if not torch.equal(a[name], b[name])}
    assert different == {f"model.10.conv_block.{layer}.weight" for layer in (1, 5)}  # biases before a norm stay 0
    assert set(json.loads((run / "samples" / "index.json").read_text())) == {"a2b", "b2a"}
    (row,) = (row for row in read_stats(run) if "validation/distance" in row)
    assert {"validation/distance_a2b", "validation/distance_b2a", "validation/reconstruction_a"} <= set(row)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"generator": {"network": "unet_128"}}, r"generator.network=unet_128 .* set generator.network=resnet"),
        ({"generator": {"blocks": 0}}, r"generator.blocks=0 leaves .* set 1 or more"),
        ({"data": {"channels_a": 1, "channels_b": 3}}, r"one autoencoder .* A have 1 and those of B 3 channels: set"),
        ({"method": {"cycle_a": 5.0}}, r"method.cycle_a: unknown field"),
        ({"generator_b": {"channels": 8}}, r"method=onepair has one autoencoder"),
    ],
)
def test_rejects_unsuitable_configurations(sections: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        Config().change(method="onepair").change(**sections)


def test_an_identity_translator_leaves_images_unchanged(one_pair: Callable[..., Config], tmp_path: Path):
    run = tmp_path / "run"
    config = one_pair(
        train={"length": "6 images", "samples": 1},
        generator={"norm": "none", "output": "change"},
        method={"scale": 1.0},
    )
    _train(config, run)
    translator = load_translator(run)
    encoder, translate, decoder = split_stages(translator.net)
    images = torch.rand(2, 3, 32, 32) * 2 - 1
    with torch.no_grad():
        encoded = encoder(images)
        expected = apply_change(images, after=decoder(translate(encoded)), before=decoder(encoded))
    torch.testing.assert_close(translator(images), expected.clamp(-1, 1), rtol=0, atol=1e-5)
    fast = Accelerator(torch.device("cpu"), tmp_path / "kernels")(translator.net, rounded=True)
    assert (fast(images) - expected.clamp(-1, 1)).abs().mean() < 1 / 127.5
    for parameter in translate.parameters():
        parameter.zero_()  # residual blocks without effect
    torch.testing.assert_close(translator(images), images, rtol=0, atol=0)
