"""The recommended recipe takes any two kinds of pictures, from training to a file for other programs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from velogan.cli import main
from velogan.config import Config
from velogan.measure import probe
from velogan.networks.outputs import MaskGenerator
from velogan.networks.pretrained import find_lite
from velogan.translate.model import load_translator
from velogan.types import GENERATOR_FILES

pytestmark = pytest.mark.skipif(find_lite("lite0") is None, reason="the weights of EfficientNet-Lite0 are missing")
SIDES = {"A": 36, "B": 44}
"""Of the pictures: their sizes make no difference."""


def _write(folder: Path, *, count: int, channels: int, side: int) -> None:
    folder.mkdir(parents=True)
    draw = np.random.default_rng([side, channels])
    for number in range(count):
        coarse = draw.integers(0, 256, (4, 4, channels), dtype=np.uint8)
        np.save(folder / f"{number}.npy", np.kron(coarse, np.ones((side // 4, side // 4, 1), np.uint8)))


def _shapes(folder: Path) -> set[tuple[int, ...]]:
    return {np.load(file).shape for file in folder.iterdir()}


@pytest.mark.parametrize(("a", "b"), [(1, 3), (4, 4)])
def test_any_channels(a: int, b: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for letter, channels in (("A", a), ("B", b)):
        _write(tmp_path / f"train{letter}", count=20, channels=channels, side=SIDES[letter])
        _write(tmp_path / f"test{letter}", count=3, channels=channels, side=SIDES[letter])
    run = tmp_path / "run"
    words = f"""train --data {tmp_path} --out {run} --image-size 32 --generator.channels 2 --generator.blocks 1
        --discriminator.channels 2 --discriminator.feature-size 32 --data.batch-size 1 --data.validation 2
        --train.samples 1 --train.logger none --engine.threads 1""".split()
    assert main([*words, "--images", "1"]) == 0
    messages = capsys.readouterr().err
    assert f"generator.output: {'mask' if a == b else 'image'} (" in messages
    assert ("discriminator.features: see three channels" in messages) == (not {a, b} <= {1, 3})
    assert main([*words, "--images", "2"]) == 0
    assert f"resuming {run} at 1 image" in capsys.readouterr().err

    for direction, channels_out in zip(GENERATOR_FILES, (b, a)):
        letter = direction[0].upper()
        assert isinstance(load_translator(run, direction=direction).net, MaskGenerator) == (a == b)
        out = tmp_path / f"out{letter}"
        assert main(["translate", str(run), str(tmp_path / f"test{letter}"), str(out), "--direction", direction]) == 0
        side = SIDES[letter]
        assert _shapes(out) == {(side, side) if channels_out == 1 else (side, side, channels_out)}
    assert main(["evaluate", str(run), "--features", "none", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {row["direction"] for row in scores["scores"]} == {"a2b", "b2a"}
    if a == b:
        assert main(["export", str(run), str(tmp_path / "net.pt2"), "--format", "torch"]) == 0


def test_a_dry_run_looks_at_the_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch):
    _write(tmp_path / "grey", count=2, channels=1, side=36)
    _write(tmp_path / "four", count=40, channels=4, side=36)
    (tmp_path / "four" / "0.npy").write_bytes(b"no picture")
    timed: list[Config] = []
    monkeypatch.setattr(probe, "probe", lambda config, cores: timed.append(config) or probe.ImageCost(1, 1, 0))
    words = ["train", "cyclegan", "--data", str(tmp_path / "grey"), str(tmp_path / "four"), "--image-size", "32"]
    words += ["--generator.blocks", "1", "--generator.output", "auto", "--dry-run"]
    assert main([*words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["channels"] for row in result["pictures"].values()] == [1, 4]
    assert result["networks"]["G_B"] - result["networks"]["G_A"] == -3  # the biases of its last layer
    assert result["networks"]["D_A"] - result["networks"]["D_B"] == 3 * 4 * 4 * 64  # the weights of its first layer
    assert (timed[0].data.channels_a, timed[0].data.channels_b) == (1, 4)
    assert main([*words, "--data.labels-a", str(tmp_path / "grey")]) == 0
    assert "the estimate assumes 19 classes" in capsys.readouterr().err
    assert main([*words, "--data.channels-a", "3"]) == 0
    assert "A (grey): 2 pictures for training, 0 held out, 0 for test; 3 channels" in capsys.readouterr().out
    for file in (tmp_path / "four").iterdir():
        file.write_bytes(b"no picture")
    assert main(words) == 2
    assert "0.npy cannot be read (nor any other" in capsys.readouterr().err
