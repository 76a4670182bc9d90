from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor, nn

import velogan.evaluate
from velogan.config import Config, write_yaml
from velogan.data.images import read_image
from velogan.data.rendered import render_folder
from velogan.deploy.model import Translator
from velogan.engine.checkpoint import save_checkpoint
from velogan.evaluate import evaluate, render_table
from velogan.networks.generators import GeneratorConfig, build_generator

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
WEIGHTS = SHARED / "weights" / "squeezenet1_0_imagenet_deepcompression.npz"
CPU = torch.device("cpu")


def _run(tmp_path: Path, *data: Path, size: int = 32, averages: bool = True, **settings: object) -> Path:
    """A run folder with untrained generators over the given data."""
    run, config = tmp_path / "run", GeneratorConfig.model_validate({"blocks": 1, "channels": 2})
    names = ["G_A", "G_B", *(["G_A.ema", "G_B.ema"] if averages else [])]
    networks: dict[str, nn.Module] = {name: build_generator(config) for name in names}
    headers = {name: {"role": name[:3], "config": config.model_dump(), "images_seen": 40} for name in names}
    save_checkpoint(run, images=40, networks=networks, headers=headers, state={}, clock={})
    fields = {"path": [str(path) for path in data], "crop_size": size, "cache_dir": str(tmp_path / "cache")}
    (run / "config.yaml").write_text(write_yaml(Config().change(data=fields | settings)))
    return run


def _folder(directory: Path, pictures: dict[str, np.ndarray]) -> None:
    directory.mkdir(parents=True)
    for name, picture in pictures.items():
        Image.fromarray(picture).save(directory / name)


def _noise(names: list[str], *, seed: int, side: int = 32) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {name: generator.integers(0, 256, (side, side, 3), dtype=np.uint8) for name in names}


def _unpaired(root: Path, *, tests: bool = True) -> Path:
    counts = {"trainA": 5, "trainB": 9} | ({"testA": 4, "testB": 6} if tests else {})
    for seed, (name, count) in enumerate(counts.items()):
        _folder(root / name, _noise([f"{name}{i}.png" for i in range(count)], seed=seed))
    return root


def _squeezenet(file: Path) -> Path:
    """Random weights of the right names and shapes."""
    generator = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"conv1": (96, 3, 7, 7), "conv_final": (1000, 512, 1, 1)}
    inputs = 96
    for fire, squeeze in enumerate((16, 16, 32, 32, 48, 48, 64, 64), start=2):
        shapes[f"fire{fire}.squeeze"] = (squeeze, inputs, 1, 1)
        shapes[f"fire{fire}.expand1x1"] = (4 * squeeze, squeeze, 1, 1)
        shapes[f"fire{fire}.expand3x3"] = (4 * squeeze, squeeze, 3, 3)
        inputs = 8 * squeeze
    arrays = {}
    for name, shape in shapes.items():
        scale = (2 / np.prod(shape[1:])) ** 0.5
        arrays[f"{name}.weight"] = (generator.standard_normal(shape) * scale).astype(np.float32)
        arrays[f"{name}.bias"] = np.zeros(shape[0], np.float32)
    np.savez(file, **arrays)
    return file


def _stand_in(monkeypatch: pytest.MonkeyPatch, net: nn.Module) -> None:
    file = None

    def load(folder: Path, **_: object) -> Translator:
        nonlocal file
        file = folder / "G_A.safetensors"
        return Translator(net, multiple=4, device=CPU, file=file)

    monkeypatch.setattr(velogan.evaluate, "load_translator", load)


def _by_key(result: dict) -> dict[tuple[str, str], dict]:
    return {(score["name"], score["direction"]): score for score in result["scores"]}


def test_a_rendered_set_is_scored_against_its_truth(tmp_path: Path) -> None:
    data = render_folder(tmp_path / "set", count=2, test_count=3, image_size=36, test_size=32, seed=0)
    run = _run(tmp_path, data)
    result = evaluate(run)
    assert json.loads((run / "scores.json").read_text()) == result
    names = {"psnr_object_db", "ssim_object", "psnr_background_db"}
    scores = _by_key(result)
    assert set(scores) == {(name, direction) for name in names for direction in ("a2b", "b2a")}
    score = scores["psnr_object_db", "a2b"]
    assert score["images_fake"] == 3
    assert (score["floor"], score["weights"], score["checkpoint"], score["better"]) == (
        None,
        "ema",
        "last",
        "higher",
    )
    nothing = []
    for file in sorted((data / "testA").iterdir()):
        image, truth = (read_image(folder / file.name) / 127.5 for folder in (data / "testA", data / "truthA"))
        inside = read_image(data / "maskA" / file.name)[..., 0] > 127
        nothing.append(10 * math.log10(4 / ((image - truth)[inside] ** 2).mean()))
    assert score["ceiling"] == pytest.approx(np.mean(nothing), abs=1e-3)
    assert scores["psnr_background_db", "a2b"]["ceiling"] is None  # the input equals itself
    assert result["protocol"]["data"]["a"] == {
        "name": "A",
        "split": "test",
        "images": 3,
        "skipped": 0,
        "with_truth": 3,
        "smallest_and_largest_px": [[32, 32], [32, 32]],
    }


def test_doing_nothing_scores_its_ceiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = render_folder(tmp_path / "set", count=5, test_count=3, image_size=36, test_size=32, seed=0)
    _stand_in(monkeypatch, nn.Identity())
    squeezenet = _squeezenet(tmp_path / "squeezenet.npz")
    result = evaluate(_run(tmp_path, data), squeezenet=squeezenet, classes={"zebra": 340})
    assert {score["name"] for score in result["scores"]} >= {"squeeze_fid", "squeeze_kid", "share_class_340"}
    for score in result["scores"]:
        assert score["value"] == score["ceiling"], score["name"]


def test_an_aligned_set_is_scored_on_whole_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["1.png", "2.png"]
    pictures = _noise(names, seed=0)
    for split in ("train", "test"):
        _folder(tmp_path / "set" / f"{split}A", pictures)
        _folder(tmp_path / "set" / f"{split}B", {name: 255 - picture for name, picture in pictures.items()})

    class Negative(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (-x).clamp(-0.98, 0.98)  # not quite the truth, whose score would be infinite

    _stand_in(monkeypatch, Negative())
    scores = _by_key(evaluate(_run(tmp_path, tmp_path / "set")))
    assert set(scores) == {(n, d) for n in ("psnr_truth_db", "ssim_truth") for d in ("a2b", "b2a")}
    assert scores["psnr_truth_db", "a2b"]["value"] > 50
    assert scores["psnr_truth_db", "a2b"]["ceiling"] < 10
    assert scores["ssim_truth", "b2a"]["value"] == pytest.approx(1, abs=1e-2)
    assert scores["ssim_truth", "b2a"]["ceiling"] < 0


def test_distances_have_a_floor_over_equal_counts(tmp_path: Path) -> None:
    run = _run(tmp_path, _unpaired(tmp_path / "set"))
    result = evaluate(run, squeezenet=_squeezenet(tmp_path / "squeezenet.npz"), both_weights=True)
    fid = [score for score in result["scores"] if score["name"] == "squeeze_fid"]
    assert [(score["direction"], score["weights"]) for score in fid] == [
        ("a2b", "ema"),
        ("a2b", "raw"),
        ("b2a", "ema"),
        ("b2a", "raw"),
    ]
    assert "floor: 4 train B" in fid[0]["what"]  # 4 translated pictures of A
    assert "floor: 5 train A" in fid[2]["what"]  # 6 translated pictures of B, but A has 5
    assert (fid[0]["images_fake"], fid[0]["images_real"], fid[0]["better"]) == (4, 6, "lower")
    assert 0 < fid[0]["floor"] < fid[0]["value"]
    assert fid[0]["value"] != fid[1]["value"]
    assert fid[0]["floor"] == fid[1]["floor"]
    assert len({record["sha256"] for record in result["protocol"]["networks"]}) == 4
    assert len(result["protocol"]["features"]["sha256"]) == 64


def test_without_a_test_split_train_pictures_are_halved_for_the_floor(tmp_path: Path) -> None:
    data = _unpaired(tmp_path / "set", tests=False)
    run = _run(tmp_path, data / "trainA", data / "trainB", averages=False)
    result = evaluate(run, squeezenet=_squeezenet(tmp_path / "squeezenet.npz"))
    assert result["protocol"]["data"]["b"]["split"] == "train"
    score = _by_key(result)["squeeze_kid", "a2b"]
    assert "one half of the trainB against the other" in score["what"]
    assert (score["weights"], score["images_fake"], score["images_real"]) == ("raw", 5, 9)


def test_sizes_may_differ_and_a_broken_file_is_counted(tmp_path: Path) -> None:
    data = _unpaired(tmp_path / "set")
    _folder(data / "testA" / "more", _noise(["x.png"], seed=9, side=50))
    (data / "testA" / "broken.png").write_bytes(b"no picture")
    run = _run(tmp_path, data, preprocess="none", size=32)
    counts = evaluate(run)["protocol"]["data"]["a"]
    assert (counts["images"], counts["skipped"]) == (5, 1)
    assert counts["smallest_and_largest_px"] == [[32, 32], [48, 48]]


def test_a_limit_keeps_pairs_together(tmp_path: Path) -> None:
    data = render_folder(tmp_path / "set", count=2, test_count=5, image_size=36, test_size=32, seed=0)
    result = evaluate(_run(tmp_path, data), limit=2)
    assert result["protocol"]["data"]["a"]["with_truth"] == 2
    assert result["scores"][0]["images_fake"] == 2


def test_the_table_shows_every_score(tmp_path: Path) -> None:
    data = render_folder(tmp_path / "set", count=2, test_count=2, image_size=36, test_size=32, seed=0)
    result = evaluate(_run(tmp_path, data))
    console = Console(width=80)
    with console.capture() as captured:
        console.print(render_table(result))
    text = captured.get()
    for score in result["scores"]:
        assert score["name"] in text
        assert f"{score['value']:.4g}" in text
    assert "000000040" in text


def test_refusals_name_the_mend(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no config\.yaml: name a run folder"):
        evaluate(tmp_path)
    run = _run(tmp_path, _unpaired(tmp_path / "set"))
    with pytest.raises(ValueError, match=r"squeezenet=.*absent\.npz cannot be used: .*; name the \.npz"):
        evaluate(run, squeezenet=tmp_path / "absent.npz")
    with pytest.raises(ValueError, match="cannot be used"):
        evaluate(run, squeezenet=run / "config.yaml")
    with pytest.raises(ValueError, match="give its file as squeezenet"):
        evaluate(run, classes={"zebra": 340})
    with pytest.raises(ValueError, match="limit=1 is too few"):
        evaluate(run, limit=1)
    with pytest.raises(ValueError, match="must hold trainA and trainB"):
        evaluate(run, data=str(tmp_path / "elsewhere"))
    assert not (run / "scores.json").exists()


@pytest.mark.shared
@pytest.mark.skipif(not WEIGHTS.is_file(), reason="the real images are not beside the project")
def test_horses_and_zebras_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _stand_in(monkeypatch, nn.Identity())
    run = _run(tmp_path, SHARED / "horse2zebra", size=256)
    scores = _by_key(evaluate(run, squeezenet=WEIGHTS, classes={"zebra": 340}))
    there, back = (scores["share_class_340", direction] for direction in ("a2b", "b2a"))
    assert (there["ceiling"], there["floor"], there["better"]) == (0, pytest.approx(0.9, abs=5e-4), "higher")
    assert (back["ceiling"], back["floor"], back["better"]) == (pytest.approx(0.9, abs=5e-4), 0, "lower")
    for distance in ("squeeze_fid", "squeeze_kid"):
        assert scores[distance, "a2b"]["floor"] < scores[distance, "a2b"]["ceiling"] / 2
