from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from benchmarks.squeezenet import SqueezeNet, main
from velogan.metrics.registry import is_top1

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
WEIGHTS = SHARED / "weights" / "squeezenet1_0_imagenet_deepcompression.npz"


def random_arrays(seed: int = 0) -> dict[str, np.ndarray]:
    """Return random weights with the names and shapes of the published table of the network."""
    generator = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"conv1": (96, 3, 7, 7), "conv_final": (1000, 512, 1, 1)}
    inputs = 96
    for fire, (squeeze, expand) in enumerate(
        [(16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256)], start=2
    ):
        shapes[f"fire{fire}.squeeze"] = (squeeze, inputs, 1, 1)
        shapes[f"fire{fire}.expand1x1"] = (expand, squeeze, 1, 1)
        shapes[f"fire{fire}.expand3x3"] = (expand, squeeze, 3, 3)
        inputs = 2 * expand
    arrays = {}
    for name, shape in shapes.items():
        scale = (2 / np.prod(shape[1:])) ** 0.5
        arrays[f"{name}.weight"] = (generator.standard_normal(shape) * scale).astype(np.float32)
        arrays[f"{name}.bias"] = np.zeros(shape[0], np.float32)
    return arrays


def test_input_is_blue_first_minus_the_mean() -> None:
    arrays = random_arrays()
    arrays["conv1.weight"] = np.zeros_like(arrays["conv1.weight"])
    arrays["conv1.weight"][:, 0] = 1 / 49  # blue alone
    net = SqueezeNet(arrays)
    picture = torch.full((1, 3, 227, 227), -1.0)
    picture[:, 2] = 1.0
    outputs: list[Tensor] = []
    net.conv1.register_forward_hook(lambda *call: outputs.append(call[-1]))
    net(picture)
    assert outputs[0].shape == (1, 96, 111, 111)
    assert outputs[0].mean().item() == pytest.approx(255 - 104, abs=1e-3)


def test_the_command_compares_two_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays: dict[str, Any] = {**random_arrays()}
    np.savez(tmp_path / "weights.npz", **arrays)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.new("RGB", (20, 20), (number * 90, 30, 30)).save(tmp_path / name / f"{number}.png")
    argv = [str(tmp_path / "a"), "--against", str(tmp_path / "b"), "--weights", str(tmp_path / "weights.npz")]
    main([*argv, "--classes", "zebra=340", "--json"])
    scores = {score["name"] for score in json.loads(capsys.readouterr().out)["scores"]}
    assert scores >= {"squeeze_fid", "squeeze_kid", "squeeze_share_class_340"}


@pytest.mark.shared
@pytest.mark.skipif(not WEIGHTS.is_file(), reason="the real images are not beside the project")
@pytest.mark.parametrize(
    ("folder", "index", "share"),
    [
        ("horse2zebra/testB", 340, 0.900),
        ("horse2zebra/testA", 340, 0.0),
        ("apple2orange/testB", 950, 0.524),
        ("apple2orange/testA", 950, 0.0),
    ],
)
def test_real_images_are_classified_as_published(folder: str, index: int, share: float) -> None:
    net = SqueezeNet(np.load(WEIGHTS))
    logits = []
    for file in sorted((SHARED / folder).iterdir()):
        with Image.open(file) as image:
            pixels = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)[None]
        logits.append(net(pixels.float() / 127.5 - 1)[1])
    assert is_top1(torch.cat(logits), index).mean().item() == pytest.approx(share, abs=5e-4)
