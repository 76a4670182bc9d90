"""`velogan translate --uncertainty` and `Model.uncertainty`, of runs with a direction back and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import velogan
from velogan.cli import main
from velogan.config import Config, to_yaml
from velogan.methods.base import generator_header
from velogan.networks.build import build_network
from velogan.store.checkpoint import save_checkpoint
from velogan.translate.uncertainty import UncertaintyEstimator
from velogan.types import GENERATOR_FILES, Direction


def _run(folder: Path, *directions: Direction, method: str = "cyclegan") -> Path:
    config = Config().change(method=method, generator={"channels": 4, "blocks": 1})
    torch.manual_seed(0)
    headers = {
        GENERATOR_FILES[direction]: {**generator_header(config.spec, direction), "role": GENERATOR_FILES[direction]}
        for direction in directions
    }
    nets = {role: build_network(header) for role, header in headers.items()}
    save_checkpoint(folder, images=3, networks=nets, headers=headers, state={}, clock={})
    (folder / "config.yaml").write_text(to_yaml(config))
    return folder


def _photo() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (26, 37, 3), np.uint8)


def _translate(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, Any]:
    assert main(["translate", *map(str, argv), "--uncertainty", "--fp32", "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_command_and_python_compute_the_same_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = _run(tmp_path / "run", "a2b", "b2a")
    (tmp_path / "in").mkdir()
    Image.fromarray(_photo()).save(tmp_path / "in/one.png")
    result = _translate(capsys, run, tmp_path / "in", tmp_path / "out")
    file = tmp_path / "out/one.uncertainty.png"
    uncertainty = velogan.load(run, fp32=True).uncertainty(_photo())
    assert np.array_equal(np.asarray(Image.open(file)), uncertainty.map)
    assert uncertainty.map.std() > 0
    (entry,) = result["uncertainty"]
    assert (entry["name"], entry["map"]) == ("one.png", str(file))
    assert entry["mean"] == pytest.approx(uncertainty.mean, abs=1e-5)
    assert entry["highest"]["x"] == uncertainty.highest.x
    assert 0 < entry["mean"] < entry["highest"]["mean"] <= 1
    again = _translate(capsys, run, tmp_path / "in", tmp_path / "out")
    assert again["skipped"] == 1
    assert again["uncertainty"] == result["uncertainty"]


def test_reconstructs_by_the_reverse_generator_or_the_autoencoder(tmp_path: Path):
    images = torch.rand(1, 3, 16, 16) * 2 - 1
    both = velogan.load(_run(tmp_path / "both", "a2b", "b2a"), direction="b2a", fp32=True)
    back = velogan.load(tmp_path / "both", direction="a2b", fp32=True)
    estimator: UncertaintyEstimator = both._estimator  # pyright: ignore[reportPrivateUsage]
    assert torch.equal(estimator.reconstruct(images, images / 2), back.translator(images / 2))
    alone = velogan.load(_run(tmp_path / "alone", "a2b", method="onepair"), fp32=True)
    estimator = alone._estimator  # pyright: ignore[reportPrivateUsage]
    assert torch.equal(estimator.reconstruct(images, images / 2), estimator.reconstruct(images, images))
    assert not torch.equal(estimator.reconstruct(images, images), alone.translator(images))


def test_rejects_models_without_a_reverse_generator_before_writing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = _run(tmp_path / "run", "a2b")
    Image.fromarray(_photo()).save(tmp_path / "one.png")
    alone, out = tmp_path / "G_A.safetensors", tmp_path / "out"
    alone.write_bytes(next((run / "checkpoints").glob("*/G_A.safetensors")).read_bytes())
    for model, more, message in (
        (run, [], "has no G_B.safetensors: train both directions"),
        (alone, [], "is a single file: name the run folder"),
        (run, ["--workers", "2"], "--uncertainty cannot be combined with --workers 2"),
    ):
        assert main(["translate", str(model), str(tmp_path / "one.png"), str(out), "--uncertainty", *more]) == 2
        assert message in capsys.readouterr().err
    assert not out.exists()
    with pytest.raises(ValueError, match="image=str: not an image"):
        velogan.load(_run(tmp_path / "both", "a2b", "b2a")).uncertainty("one.png")
