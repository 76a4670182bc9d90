"""The one-pair method through the whole job: train, sample, translate, score, report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from velogan.config import Config
from velogan.data.sets.sources import Folder, find_sources
from velogan.evaluation.evaluate import evaluate
from velogan.kernels.inference import Accelerator
from velogan.networks.build import build_network
from velogan.networks.generators import compose, split
from velogan.networks.outputs import apply_change
from velogan.observe.log import read_stats
from velogan.observe.progress import Display
from velogan.report import write_report
from velogan.store.checkpoint import load_weights
from velogan.training.run import train
from velogan.training.session import Result
from velogan.translate.model import load_translator

PLUS: dict[str, Any] = {"pool_size": 2}


def _train(config: Config, run: Path) -> Result:
    with Display() as display:
        return train(config, run, display=display, origin={"preset": "test", "command": "test"})


def _scores(run: Path, name: str, *, weights: str) -> list[float]:
    return [one["value"] for one in evaluate(run)["scores"] if (one["name"], one["weights"]) == (name, weights)]


@pytest.fixture
def one_pair(tiny_config: Callable[..., Config]) -> Callable[..., Config]:
    """A tiny run of the method."""

    def make(**sections: Any) -> Config:
        return tiny_config(**{**sections, "method": {"kind": "onepair", **sections.get("method", {})}})

    return make


def test_the_whole_job(one_pair: Callable[..., Config], tmp_path: Path):
    run = tmp_path / "run"
    config = one_pair(train={"length": "6 images", "samples": 2}, method=PLUS)
    checkpoint = _train(config, run).checkpoint
    names = {file.stem for file in checkpoint.glob("*.safetensors")}
    assert names == {"G_A", "G_A.ema", "D_A", "state"}
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
    assert {score["weights"] for score in result["scores"]} == {"ema", "raw"}
    figures = {score["name"]: score for score in result["scores"]}
    assert {"psnr_object_db", "psnr_background_db", "psnr_reconstruction_db", "ssim_reconstruction"} <= set(figures)
    assert json.loads((run / "scores.json").read_text())["scores"] == result["scores"]
    page = write_report([run]).read_text()
    assert all(words in page for words in ("Reconstruction PSNR", '"reconstruction"', '"b2b"'))

    with pytest.raises(ValueError, match=r"translates a2b only"):
        load_translator(run, direction="b2a")


def test_the_reconstruction_is_scored_without_the_translator(one_pair: Callable[..., Config], tmp_path: Path):
    run = tmp_path / "run"
    _train(one_pair(), run)
    (score,) = _scores(run, "psnr_reconstruction_db", weights="raw")
    net, values = compose(*split(load_translator(run, weights="raw").net)[::2]), []
    test = find_sources(one_pair().data).a.test
    assert isinstance(test, Folder)
    for name in test.names:
        pixels = np.asarray(Image.open(test.directory / name).resize((32, 32), Image.Resampling.BICUBIC))
        image = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].float() / 127.5 - 1
        with torch.no_grad():
            back = ((net(image) + 1) * 127.5).round().clamp(0, 255) / 127.5 - 1
        values.append(float(10 * torch.log10(4 / (back - image).square().mean())))
    assert score == pytest.approx(np.mean(values), abs=0.05)


def test_both_directions_share_one_autoencoder(one_pair: Callable[..., Config], tmp_path: Path):
    run = tmp_path / "run"
    config = one_pair(
        train={"length": "8 images", "samples": 1},
        method={"direction": "both", "pool_size": 2},
        data={"render_count": 24},
    )
    checkpoint = _train(config, run).checkpoint
    judged = {}
    for file in checkpoint.glob("*.safetensors"):
        if file.stem != "state":
            header, weights = load_weights(file)
            build_network(header).load_state_dict(weights)
            judged[file.stem] = (header.get("judges"), header.get("sees"), "input" in header)
    assert {judged[name] for name in ("D_A", "D_B")} == {("B", "encodings", False), ("A", "encodings", False)}
    assert judged["G_A"] == (None, None, True)
    there, back = (load_weights(checkpoint / f"G_{way}.ema.safetensors")[1] for way in "AB")
    assert there.keys() == back.keys()
    different = {name for name in there if not torch.equal(there[name], back[name])}
    assert different == {f"model.10.conv_block.{layer}.weight" for layer in (1, 5)}  # biases before a norm stay 0
    assert {score["direction"] for score in evaluate(run)["scores"]} == {"a2b", "b2a"}
    assert set(json.loads((run / "samples" / "index.json").read_text())) == {"a2b", "b2a"}
    (row,) = (row for row in read_stats(run) if "validation/distance" in row)
    assert {"validation/distance_a2b", "validation/distance_b2a", "validation/reconstruction_a"} <= set(row)


def test_an_autoencoder_first_and_then_a_translator_around_it(one_pair: Callable[..., Config], tmp_path: Path):
    first, second = tmp_path / "first", tmp_path / "second"
    alone = one_pair(method={"stage": "autoencoder"})
    checkpoint = _train(alone, first).checkpoint
    assert {file.stem for file in checkpoint.glob("*.safetensors")} == {"G_A", "G_A.ema", "state"}
    kept = load_translator(first).net.state_dict()
    around = one_pair(method={"stage": "translator", "start": str(first)})
    _train(around, second)
    for weights in ("raw", "ema"):
        translator = load_translator(second, weights=weights)
        values = [value for name, value in translator.net.state_dict().items() if "conv_block" not in name]
        assert all(torch.equal(value, before) for value, before in zip(values, kept.values(), strict=True))

    moved = first.rename(tmp_path / "moved")
    longer = around.change(train={"length": "12 images"})
    assert _train(longer, second).images_seen == 12
    assert _train(longer.change(method={"start": str(moved)}, train={"length": "13 images"}), second).images_seen == 13

    wider = around.change(generator={"channels": 6}, method={"start": str(moved)})
    with pytest.raises(ValueError, match=r"method.start=.* has another autoencoder than generator"):
        _train(wider, tmp_path / "third")


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"generator": {"network": "unet_128"}}, r"generator.network=unet_128 .* set generator.network=resnet"),
        ({"generator": {"blocks": 0}}, r"generator.blocks=0 leaves .* set 1 or more"),
        ({"data": {"channels_a": 1, "channels_b": 3}}, r"one autoencoder .* A have 1 and those of B 3 channels: set"),
        ({"method": {"cycle_a": 5.0}}, r"method.cycle_a: there is no such field"),
        ({"generator_b": {"channels": 8}}, r"method=onepair has one autoencoder"),
    ],
)
def test_what_does_not_go_with_the_method_is_refused_with_the_mend(sections: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        Config().change(method="onepair").change(**sections)


def test_pictures_too_small_to_be_judged_are_refused_before_training(one_pair: Callable[..., Config], tmp_path: Path):
    with pytest.raises(ValueError, match=r"discriminator.network=basic cannot take images of 16x16"):
        _train(one_pair(data={"crop_size": 16}), tmp_path / "run")


def test_what_the_translator_leaves_alone_stays_as_it_was(one_pair: Callable[..., Config], tmp_path: Path):
    run = tmp_path / "run"
    config = one_pair(
        train={"length": "6 images", "samples": 1},
        generator={"norm": "none", "output": "change"},
        method={**PLUS, "scale": 1.0},
    )
    _train(config, run)
    translator = load_translator(run)
    encoder, translate, decoder = split(translator.net)
    images = torch.rand(2, 3, 32, 32) * 2 - 1
    with torch.no_grad():
        encoded = encoder(images)
        expected = apply_change(images, after=decoder(translate(encoded)), before=decoder(encoded))
    torch.testing.assert_close(translator(images), expected.clamp(-1, 1), rtol=0, atol=1e-5)
    fast = Accelerator(torch.device("cpu"), tmp_path / "kernels")(translator.net, rounded=True)
    assert (fast(images) - expected.clamp(-1, 1)).abs().mean() < 1 / 127.5
    for parameter in translate.parameters():
        parameter.zero_()  # residual blocks that add nothing
    torch.testing.assert_close(translator(images), images, rtol=0, atol=0)
