from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional

import velogan.evaluation.evaluate
from benchmarks.squeezenet import load_squeezenet
from velogan.config import Config, read_config, to_yaml
from velogan.data.pictures.images import read_picture
from velogan.data.rendered.apples2oranges import render_folder
from velogan.evaluation.evaluate import evaluate
from velogan.evaluation.features import FeatureNetwork
from velogan.evaluation.table import duplicates_warning, render_table
from velogan.kernels.inference import Accelerator
from velogan.metrics.bootstrap import RESAMPLES
from velogan.metrics.pixel import structure
from velogan.networks.generators import GeneratorConfig, build_generator
from velogan.report.scores import display_name, format_value
from velogan.store.checkpoint import mark_best, save_checkpoint
from velogan.translate.files import translate
from velogan.translate.model import CheckpointChoice, Translator, load_translator

from ..models import in_memory

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
WEIGHTS = SHARED / "weights" / "squeezenet1_0_imagenet_deepcompression.npz"
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _plain_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the choice of faster layers, which takes a tenth of a second for each call, and builds kernels."""
    monkeypatch.setattr(Accelerator, "__call__", lambda _self, net, *, rounded: net)
    monkeypatch.setattr(Accelerator, "dtype", lambda _self, *, rounded: torch.float32)


@pytest.fixture
def judge() -> FeatureNetwork:
    """A network with means and deviations of each quarter of an image as features."""

    def extract(images: Tensor) -> dict[str, Tensor]:
        parts = functional.interpolate(images, (32, 32)).unfold(2, 16, 16).unfold(3, 16, 16)
        features = torch.cat([parts.mean((4, 5)).flatten(1), parts.std((4, 5)).flatten(1)], dim=1)
        return {"quarters": features, "quarters_logits": features}

    return FeatureNetwork(extract, {"quarters": "means and deviations", "sha256": 64 * "0"})


CONFIG = GeneratorConfig.model_validate({"blocks": 1, "channels": 2})


def _save(run: Path, images: int, *, averages: bool = True) -> Path:
    """Save a checkpoint of untrained generators."""
    names = ["G_A", "G_B", *(["G_A.ema", "G_B.ema"] if averages else [])]
    networks: dict[str, nn.Module] = {name: build_generator(CONFIG) for name in names}
    headers = {
        name: {"role": name[:3], "network": "generator", "config": CONFIG.model_dump(), "images_seen": images}
        for name in names
    }
    return save_checkpoint(run, images=images, networks=networks, headers=headers, state={}, clock={})


def _run(tmp_path: Path, *data: Path, size: int = 32, averages: bool = True, **settings: object) -> Path:
    """Return a run folder with untrained generators over the inputs data."""
    run = tmp_path / "run"
    _save(run, 40, averages=averages)
    fields = {"path": [str(path) for path in data], "crop_size": size, "cache_dir": str(tmp_path / "cache")}
    (run / "config.yaml").write_text(to_yaml(Config().change(data=fields | settings)))
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


def _translate_by(net: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(folder: Path, **_: object) -> Translator:
        return replace(in_memory(net), file=folder / "G_A.safetensors")

    monkeypatch.setattr(velogan.evaluation.evaluate, "load_translator", load)


def _by_key(result: dict, weights: str = "ema") -> dict[tuple[str, str], dict]:
    """The last checkpoint's scores."""
    chosen = [score for score in result["scores"] if (score["checkpoint"], score["weights"]) == ("last", weights)]
    return {(score["name"], score["direction"]): score for score in chosen}


def test_scores_a_rendered_set_against_its_truth(tmp_path: Path) -> None:
    data = render_folder(tmp_path / "set", count=2, test_count=3, image_size=36, test_size=32, seed=0)
    run = _run(tmp_path, data)
    result = evaluate(run)
    assert json.loads((run / "scores.json").read_text()) == result
    names = {"psnr_object_db", "ssim_object", "psnr_background_db", "structure", "retrieval", "sliced_wasserstein"}
    scores = _by_key(result)
    assert set(scores) == {(name, direction) for name in names for direction in ("a2b", "b2a")}
    score = scores["psnr_object_db", "a2b"]
    assert score["images_fake"] == 3
    assert (score["real"], score["weights"], score["checkpoint"], score["better"]) == (
        None,
        "ema",
        "last",
        "higher",
    )
    unchanged = []
    for file in sorted((data / "testA").iterdir()):
        image, truth = (read_picture(folder / file.name).pixels / 127.5 for folder in (data / "testA", data / "truthA"))
        inside = read_picture(data / "maskA" / file.name).pixels[..., 0] > 127
        unchanged.append(10 * math.log10(4 / ((image - truth)[inside] ** 2).mean()))
    assert score["baseline"] == pytest.approx(np.mean(unchanged), abs=1e-3)
    assert score["interval_95"][0] < score["value"] < score["interval_95"][1]
    assert scores["psnr_background_db", "a2b"]["baseline"] is None  # the input equals itself
    assert result["protocol"]["data"]["a"] == {
        "name": "A",
        "split": "test",
        "images": 3,
        "unreadable": [],
        "with_truth": 3,
        "smallest_and_largest_px": [[32, 32], [32, 32]],
        "channels": 3,
        "dtype": "uint8",
        "range": None,
    }
    assert result["protocol"]["bootstrap"]["resamples"] == RESAMPLES


def test_an_identity_scores_the_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judge: FeatureNetwork
) -> None:
    data = render_folder(tmp_path / "set", count=5, test_count=3, image_size=36, test_size=32, seed=0)
    _translate_by(nn.Identity(), monkeypatch)
    result = evaluate(_run(tmp_path, data), judges=[judge], classes={"zebra": 3})
    assert {score["name"] for score in result["scores"]} >= {"quarters_fid", "quarters_kid", "quarters_share_class_3"}
    for score in result["scores"]:
        assert score["value"] == score["baseline"], score["name"]
    layout = _by_key(result)["structure", "a2b"]
    assert layout["value"] == pytest.approx(1)
    assert layout["real"] < 0.6  # other pictures have another layout
    retrieved = _by_key(result)["retrieval", "a2b"]
    assert (retrieved["value"], retrieved["real"]) == (1, 0.5)


def test_one_exact_copy_does_not_dominate_the_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = render_folder(tmp_path / "set", count=5, test_count=3, image_size=36, test_size=32, seed=0)

    class Some(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x[:1], x[1:] * 0.9])

    _translate_by(Some(), monkeypatch)
    score = _by_key(evaluate(_run(tmp_path, data)))["psnr_background_db", "a2b"]
    assert 30 < score["value"] < 50  # a third of it is 60


def test_scores_aligned_sets_on_complete_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["1.png", "2.png"]
    pictures = _noise(names, seed=0)
    for split in ("train", "test"):
        _folder(tmp_path / "set" / f"{split}A", pictures)
        _folder(tmp_path / "set" / f"{split}B", {name: 255 - picture for name, picture in pictures.items()})

    class Negative(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (-x).clamp(-0.98, 0.98)  # not quite the truth, whose score would be infinite

    _translate_by(Negative(), monkeypatch)
    scores = _by_key(evaluate(_run(tmp_path, tmp_path / "set")))
    names = ("psnr_truth_db", "ssim_truth", "structure", "retrieval", "sliced_wasserstein")
    assert set(scores) == {(name, direction) for name in names for direction in ("a2b", "b2a")}
    assert scores["psnr_truth_db", "a2b"]["value"] > 50
    assert scores["psnr_truth_db", "a2b"]["baseline"] < 10
    assert scores["ssim_truth", "b2a"]["value"] == pytest.approx(1, abs=1e-2)
    assert scores["ssim_truth", "b2a"]["baseline"] < 0


def test_compares_distances_with_real_ones_of_equal_counts(tmp_path: Path, judge: FeatureNetwork) -> None:
    run = _run(tmp_path, _unpaired(tmp_path / "set"))
    result = evaluate(run, judges=[judge])
    fid = [score for score in result["scores"] if score["name"] == "quarters_fid"]
    assert [(score["direction"], score["weights"]) for score in fid] == [
        ("a2b", "ema"),
        ("a2b", "raw"),
        ("b2a", "ema"),
        ("b2a", "raw"),
    ]
    assert "real against real: 4 train B" in fid[0]["description"]  # 4 translated pictures of A
    assert "real against real: 5 train A" in fid[2]["description"]  # 6 translated pictures of B, but A has 5
    assert (fid[0]["images_fake"], fid[0]["images_real"], fid[0]["better"]) == (4, 6, "lower")
    assert 0 < fid[0]["real"] < fid[0]["value"]
    assert fid[0]["value"] != fid[1]["value"]
    assert fid[0]["real"] == fid[1]["real"]
    assert len({record["sha256"] for record in result["protocol"]["networks"]}) == 4
    assert [len(network["sha256"]) for network in result["protocol"]["features"]] == [64]
    assert fid[0]["interval_95"][0] < fid[0]["value"] < fid[0]["interval_95"][1]


def test_compares_halves_of_training_pictures_without_test_pictures(tmp_path: Path, judge: FeatureNetwork) -> None:
    data = _unpaired(tmp_path / "set", tests=False)
    run = _run(tmp_path, data / "trainA", data / "trainB", averages=False)
    result = evaluate(run, judges=[judge])
    assert result["protocol"]["data"]["b"]["split"] == "train"
    score = _by_key(result, "raw")["quarters_kid", "a2b"]
    assert "one half of the trainB against the other" in score["description"]
    assert (score["weights"], score["images_fake"], score["images_real"]) == ("raw", 5, 9)


def test_reports_damaged_files_and_accepts_different_sizes(tmp_path: Path) -> None:
    data = _unpaired(tmp_path / "set")
    _folder(data / "testA" / "more", _noise(["x.png"], seed=9, side=50))
    (data / "testA" / "broken.png").write_bytes(b"no picture")
    run = _run(tmp_path, data, preprocess="none", size=32)
    result = evaluate(run)
    counts = result["protocol"]["data"]["a"]
    assert counts["images"] == 5
    assert "1 picture cannot be read: broken.png" in " ".join(_shown(result).split())
    assert [one["name"] for one in counts["unreadable"]] == ["broken.png"]
    assert counts["smallest_and_largest_px"] == [[32, 32], [48, 48]]


def test_limits_keep_pairs_together(tmp_path: Path) -> None:
    data = render_folder(tmp_path / "set", count=2, test_count=5, image_size=36, test_size=32, seed=0)
    result = evaluate(_run(tmp_path, data), limit=2)
    assert result["protocol"]["data"]["a"]["with_truth"] == 2
    assert result["scores"][0]["images_fake"] == 2


def _shown(result: dict) -> str:
    console = Console(width=80)
    with console.capture() as captured:
        console.print(render_table(result))
    return captured.get()


def test_scores_last_averaged_last_raw_and_best_in_columns_of_their_own(tmp_path: Path) -> None:
    run = _run(tmp_path, _unpaired(tmp_path / "set"))
    mark_best(run, checkpoint=_save(run, 20), name="validation/distance", score=1.0, scored_on="2 held-out A")
    result = evaluate(run)
    layout = [score for score in result["scores"] if (score["name"], score["direction"]) == ("structure", "a2b")]
    columns = [("last", "ema"), ("last", "raw"), ("best", "ema")]
    assert [(score["checkpoint"], score["weights"]) for score in layout] == columns
    assert len({score["value"] for score in layout}) == 3
    assert result["protocol"]["checkpoints"] == {"last": "000000040", "best": "000000020"}
    assert result["protocol"]["best"]["on"] == "2 held-out A"
    table, headers = _shown(result), [column.header for column in render_table(result).columns]
    titles = ["last\naveraged", "last\nraw", "best\naveraged", "unchanged\ninput", "real\npictures"]
    assert headers == ["score", *titles]
    for score in result["scores"]:
        assert display_name(score) in table
        assert format_value(score, score["value"]) in table
    assert all(text in table for text in ("000000040", "000000020", "±"))
    alone: dict[CheckpointChoice, int] = {"last": 40, "best": 20}
    for which, images in alone.items():
        only = evaluate(run, checkpoint=which)
        assert {score["checkpoint"] for score in only["scores"]} == {which}
        assert {record["images_seen"] for record in only["protocol"]["networks"]} == {images}


def test_reports_that_the_best_checkpoint_is_the_last(tmp_path: Path) -> None:
    run = _run(tmp_path, _unpaired(tmp_path / "set"))
    result = evaluate(run)
    assert result["protocol"]["best"] == "none was chosen"
    assert "best: none was chosen" in _shown(result)
    mark_best(run, checkpoint=run / "checkpoints" / "000000040", name="any", score=1.0, scored_on="some")
    result = evaluate(run)
    assert {score["checkpoint"] for score in result["scores"]} == {"last"}
    assert "= last" in _shown(result)


def test_reports_test_pictures_that_are_in_the_training_data(tmp_path: Path) -> None:
    data = _unpaired(tmp_path / "set")
    copy = data / "testA" / "again.png"
    Image.open(data / "trainA" / "trainA3.png").save(copy)
    result = evaluate(_run(tmp_path, data))
    assert result["protocol"]["duplicates"] == [
        {"test": "testA/again.png", "train": "trainA/trainA3.png", "exact": True}
    ]
    assert duplicates_warning(result) == (
        "1 of the scored pictures are in the training data too (~ almost equal): testA/again.png = trainA/trainA3.png"
    )
    copy.unlink()
    assert duplicates_warning(evaluate(tmp_path / "run")) is None


def test_scores_label_maps_by_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    colours = np.array([[0, 0, 220], [255, 80, 0]], np.uint8)
    labels = np.zeros((32, 32), int)
    labels[8:24, 8:24] = 1
    names = ["1.png", "2.png"]
    for split in ("train", "test"):
        _folder(tmp_path / "set" / f"{split}A", _noise(names, seed=0))
        _folder(tmp_path / "set" / f"{split}B", dict.fromkeys(names, colours[labels]))

    class Half(nn.Module):
        """Paints the left half as the second class, in colours a little off."""

        def forward(self, x: Tensor) -> Tensor:
            painted = torch.from_numpy(colours[(np.arange(32) < 16).astype(int)]).float() / 127.5 - 1
            return (painted.T[None, :, None] * 0.9).expand(len(x), 3, 32, 32)

    _translate_by(Half(), monkeypatch)
    scores = _by_key(evaluate(_run(tmp_path, tmp_path / "set")))
    # the square has 16 x 16 pixels, of which the left half is right; outside, the right half is
    right = (8 * 16 + (16 * 32 - 8 * 16)) / 32**2
    assert scores["label_accuracy", "a2b"]["value"] == pytest.approx(right)
    outside, square = (16 * 32 - 8 * 16) / (32**2 - 8 * 16), 8 * 16 / (16 * 32 + 8 * 16)
    assert scores["label_iou", "a2b"]["value"] == pytest.approx((outside + square) / 2)
    classes = {one["colour"]: one for one in scores["label_iou", "a2b"]["classes"]}
    assert set(classes) == {"#0000dc", "#ff5000"}
    assert classes["#ff5000"]["iou"] == pytest.approx(square)
    assert classes["#ff5000"]["share"] == pytest.approx(1 / 4)
    assert classes["#0000dc"]["accuracy"] == pytest.approx((16 * 32 - 8 * 16) / (32**2 - 16**2))
    assert ("label_accuracy", "b2a") not in scores  # pictures are no label maps


def test_scores_pictures_at_their_own_depth_and_channels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    names = ["1.png", "2.png", "3.png"]
    for split in ("train", "test"):
        _folder(tmp_path / "set" / f"{split}A", _noise(names, seed=0))
        deep = {name: generator.integers(0, 65536, (32, 32), dtype=np.uint16) for name in names}
        _folder(tmp_path / "set" / f"{split}B", deep)
    inputs: list[Tensor] = []

    class Grey(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            inputs.append(x)
            return x[:, :1] / 2 + 1e-4

    _translate_by(Grey(), monkeypatch)
    result = evaluate(_run(tmp_path, tmp_path / "set"))
    counts = result["protocol"]["data"]
    assert [(counts[side]["channels"], counts[side]["dtype"]) for side in "ab"] == [(3, "uint8"), (1, "uint16")]
    scores = _by_key(result)
    truth = np.stack([np.asarray(Image.open(tmp_path / "set" / "testB" / name)) for name in names]) / 32767.5 - 1
    fake = inputs[0][:, 0].double().numpy() / 2 + 1e-4
    expected = 10 * np.log10(4 / ((fake - truth) ** 2).mean(axis=(1, 2)))
    assert scores["psnr_truth_db", "a2b"]["value"] == pytest.approx(expected.mean(), abs=1e-4)
    assert scores["psnr_truth_db", "a2b"]["baseline"] is not None  # the inputs in grey


def test_measures_fid_by_inception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inception = FeatureNetwork(lambda images: {"inception": images.mean(dim=(2, 3))}, {"sha256": "0" * 64})
    monkeypatch.setattr(velogan.evaluation.evaluate, "load_inception", lambda *_: inception)
    scores = _by_key(evaluate(_run(tmp_path, _unpaired(tmp_path / "set")), inception=tmp_path / "weights.pth"))
    for name in ("fid", "kid"):
        assert scores[name, "a2b"]["real"] is not None
        assert scores[name, "a2b"]["interval_95"] is not None
        assert scores[name, "b2a"]["better"] == "lower"


def test_scores_held_out_pictures_of_two_folders(tmp_path: Path) -> None:
    for seed, name in enumerate(("reds", "greens")):
        _folder(tmp_path / name, _noise([f"{name}{i:02d}.png" for i in range(40)], seed=seed))
    run = _run(tmp_path, tmp_path / "reds", tmp_path / "greens")
    result = evaluate(run, checkpoint="last")
    assert (result["protocol"]["data"]["a"]["split"], result["protocol"]["data"]["a"]["images"]) == ("validation", 4)
    for score in result["scores"]:
        assert score["split"] == "validation"
        assert "held-out training pictures" in score["description"]
    assert "real against real: 4 train greens" in _by_key(result)["sliced_wasserstein", "a2b"]["description"]
    assert "training pictures that were held out are scored" in " ".join(_shown(result).split())
    few = evaluate(_run(tmp_path, tmp_path / "reds", tmp_path / "greens", validation=0))
    assert {score["split"] for score in few["scores"]} == {"train"}
    assert "on training pictures, which the run was trained on" in few["scores"][0]["description"]
    assert "training pictures: there are no others" in " ".join(_shown(few).split())


def test_scores_two_folders_of_test_pictures(tmp_path: Path) -> None:
    for seed, name in enumerate(("reds", "greens", "new-reds", "new-greens")):
        _folder(tmp_path / name, _noise([f"{name}{i}.png" for i in range(6)], seed=seed))
    run = _run(tmp_path, tmp_path / "reds", tmp_path / "greens", group=r"^(?:reds|greens)(\d)")  # not in test names
    Image.open(tmp_path / "reds" / "reds3.png").save(tmp_path / "new-reds" / "again.png")
    result = evaluate(run, data=[str(tmp_path / "new-reds"), str(tmp_path / "new-greens")])
    assert {score["split"] for score in result["scores"]} == {"test"}
    assert (result["protocol"]["data"]["a"]["images"], result["protocol"]["data"]["b"]["images"]) == (7, 6)
    assert "one half of the new-greens against" in _by_key(result)["sliced_wasserstein", "a2b"]["description"]
    assert [one["test"] for one in result["protocol"]["duplicates"]] == ["testA/again.png"]
    assert json.loads((run / "scores.json").read_text()) == result, "there were none of the run's own data"

    evaluate(run, checkpoint="last")
    own = (run / "scores.json").read_text()
    again = evaluate(run, data=[str(tmp_path / "new-reds"), str(tmp_path / "new-greens")])
    assert "keeps the scores of the run's own data" in again["unsaved"]
    assert (run / "scores.json").read_text() == own


class _Coarse(nn.Module):
    """Stands in for a faster network whose results are visibly less exact."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return (self.net(x) * 4).round() / 4


def test_scores_what_translate_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Accelerator, "__call__", lambda _self, net, *, rounded: _Coarse(net) if rounded else net)
    monkeypatch.setattr(Accelerator, "dtype", lambda _self, *, rounded: torch.bfloat16 if rounded else torch.float32)
    data = render_folder(tmp_path / "set", count=2, test_count=3, image_size=36, test_size=32, seed=0)
    run = _run(tmp_path, data)
    quick, exact = evaluate(run), evaluate(run, fp32=True)
    for result, fast in ((quick, True), (exact, False)):
        fakes = tmp_path / f"fakes-{fast}"
        translate(load_translator(run, fast=fast), data / "testA", fakes)
        kept = [structure(_read(file), _read(data / "testA" / file.name)).item() for file in sorted(fakes.iterdir())]
        assert _by_key(result)["structure", "a2b"]["value"] == pytest.approx(np.mean(kept), abs=1e-9)
    assert _by_key(quick)["structure", "a2b"]["value"] != _by_key(exact)["structure", "a2b"]["value"]
    assert [record["computed_in"] for record in quick["protocol"]["networks"]] == ["bfloat16"] * 4
    assert [record["computed_in"] for record in exact["protocol"]["networks"]] == ["float32"] * 4
    assert exact["protocol"]["precision"] == "plain float32 (exact)"


def _read(file: Path) -> Tensor:
    return torch.from_numpy(read_picture(file).pixels).permute(2, 0, 1)[None] / 127.5 - 1


def test_rejects_unusable_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"contains no config\.yaml; name a run folder"):
        evaluate(tmp_path)
    run = _run(tmp_path, _unpaired(tmp_path / "set"))
    with pytest.raises(ValueError, match=r"set features=lite2"):
        evaluate(run, classes={"zebra": 340})
    with pytest.raises(ValueError, match="limit=1: too few"):
        evaluate(run, limit=1)
    with pytest.raises(ValueError, match="must hold trainA and trainB"):
        evaluate(run, data=[str(tmp_path / "elsewhere")])
    assert not (run / "scores.json").exists()


@pytest.mark.soak
@pytest.mark.shared
@pytest.mark.skipif(not WEIGHTS.is_file(), reason="the real images are not beside the project")
def test_distinguishes_horses_from_zebras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _translate_by(nn.Identity(), monkeypatch)
    run = _run(tmp_path, SHARED / "horse2zebra", size=256)
    mark_best(run, checkpoint=run / "checkpoints" / "000000040", name="any", score=1.0, scored_on="some")
    result = evaluate(run, judges=[load_squeezenet(WEIGHTS, "cpu")], classes={"zebra": 340}, checkpoint="best")
    scores = {(score["name"], score["direction"]): score for score in result["scores"]}
    copies = [(one["test"], one["train"]) for one in result["protocol"]["duplicates"]]
    assert ("testA/n02381460_1160.jpg", "trainA/n02381460_3811.jpg") in copies
    there, back = (scores["squeeze_share_class_340", direction] for direction in ("a2b", "b2a"))
    assert (there["baseline"], there["real"], there["better"]) == (0, pytest.approx(0.9, abs=5e-4), "higher")
    assert (back["baseline"], back["real"], back["better"]) == (pytest.approx(0.9, abs=5e-4), 0, "lower")
    for distance in ("squeeze_fid", "squeeze_kid"):
        assert scores[distance, "a2b"]["real"] < scores[distance, "a2b"]["baseline"] / 2


@pytest.mark.parametrize(("features", "is_reported"), [("lite2", True), ("lite0", False)])
def test_reports_a_run_that_was_trained_on_its_judge(
    features: str, is_reported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _run(tmp_path, _unpaired(tmp_path / "data"))
    config = read_config(run).change(discriminator={"network": "projected", "features": features})
    (run / "config.yaml").write_text(to_yaml(config))
    monkeypatch.setattr(velogan.evaluation.evaluate, "load_networks", lambda *_, **__: [])
    judge = evaluate(run, features="lite2", limit=2)["protocol"].get("judge")
    assert (judge is not None) == is_reported
    if judge is not None:
        assert "trained on features of lite2" in judge
        assert "lite1" in judge
