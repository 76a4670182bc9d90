from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from velogan.config import Config
from velogan.data.pictures.images import Picture, save_picture
from velogan.data.rendered.apples2oranges import Domain, render
from velogan.data.sets.sources import find_sources
from velogan.evaluation.validation import FEATURE_SCORE, IDENTITY_SCORE, SCORE, Validation
from velogan.methods.base import InferenceGenerators
from velogan.networks.pretrained import register_features
from velogan.observe.log import read_stats
from velogan.observe.progress import Display
from velogan.report.failures import final_checkpoint_is_worse, find_failures
from velogan.store.checkpoint import (
    default_checkpoint,
    find_checkpoint,
    list_checkpoints,
    mark_best,
    read_best,
    save_checkpoint,
)
from velogan.training.run import train
from velogan.training.session import Result
from velogan.translate.model import load_translator


def _train(config: Config, run: Path, said: list[str] | None = None) -> Result:
    with Display() as display:
        if said is not None:
            display.print_line = lambda text: said.append(text)
        return train(config, run, display=display, origin={"preset": "test", "command": "test"})


@pytest.fixture
def two_folders(tmp_path: Path) -> tuple[str, str]:
    """Dark reds with 24 pictures and bright greens with 31, of 32 pixels."""
    random = np.random.default_rng(0)
    for name, count, colour in (("reds", 24, (90, 0, 0)), ("greens", 31, (0, 200, 0))):
        (tmp_path / name).mkdir()
        for number in range(count):
            pixels = random.integers(0, 50, (32, 32, 3)) + np.array(colour)
            save_picture(tmp_path / name / f"{number:03d}.png", Picture(pixels.astype(np.uint8)))
    return str(tmp_path / "reds"), str(tmp_path / "greens")


class _Paint(nn.Module):
    """Moves an image's colour, `towards` being its share of the way from reds to greens (negative: back)."""

    def __init__(self, towards: float):
        super().__init__()
        self.shift = towards * (torch.tensor([0, 200.0, 0]) - torch.tensor([90.0, 0, 0])).view(3, 1, 1) / 127.5

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


def _validation(config: Config, there: float, back: float) -> Validation:
    return _validate(config, InferenceGenerators({"a2b": _Paint(there), "b2a": _Paint(back)}))


def _validate(config: Config, views: InferenceGenerators) -> Validation:
    return Validation(config.change(engine={"device": "cpu"}), find_sources(config.data), views)


@pytest.fixture
def config(two_folders: tuple[str, str], tiny_config: Callable[..., Config]) -> Config:
    return tiny_config(data={"path": two_folders}, engine={"device": "cpu", "precision": "fp32"})


def test_scores_are_lowest_for_correct_translations(config: Config):
    right, half, unchanged = (_validation(config, there, -there).score() for there in (1.0, 0.5, 0.0))
    assert right[SCORE] < half[SCORE] / 3 < unchanged[SCORE] / 3
    for way in ("a2b", "b2a"):
        assert right[f"{SCORE}_{way}"] < half[f"{SCORE}_{way}"] < unchanged[f"{SCORE}_{way}"]
    assert right[SCORE] == pytest.approx((right[f"{SCORE}_a2b"] + right[f"{SCORE}_b2a"]) / 2)


@pytest.fixture
def with_features(config: Config, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A discriminator that sees what a small fixed network sees."""

    def eyes() -> tuple[nn.Module, list[str]]:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            convs = [nn.Conv2d(3, 5, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(5, 7, 3, stride=2, padding=1)]
        return nn.Sequential(*convs), ["1", "2"]

    monkeypatch.setattr("velogan.networks.pretrained._BUILDERS", {})
    register_features("eyes", eyes)
    judge = {"network": "projected+basic", "features": "eyes", "channels": 4}
    return config.change(discriminator=judge, method={"gan": "hinge"})


def test_scores_by_the_features_of_discriminators(with_features: Config):
    validations = [_validation(with_features, there, -there) for there in (1.0, 0.5, 0.0)]
    assert {validation.name for validation in validations} == {FEATURE_SCORE}
    right, half, unchanged = (validation.score() for validation in validations)
    assert right[FEATURE_SCORE] < half[FEATURE_SCORE] < unchanged[FEATURE_SCORE]
    ways = [right[f"{FEATURE_SCORE}_{way}"] for way in ("a2b", "b2a")]
    assert right[FEATURE_SCORE] == pytest.approx(sum(ways) / 2)
    assert right[SCORE] < half[SCORE] < unchanged[SCORE]


def test_chooses_the_best_checkpoint_by_features(
    with_features: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    scores = iter([(0.1, 0.5), (0.2, 0.25), (0.3, 0.75)])
    monkeypatch.setattr(Validation, "score", lambda self: dict(zip((SCORE, FEATURE_SCORE), next(scores))))
    config = with_features.change(train={"length": "6 images", "checkpoint_every": "2 images"})
    _train(config, tmp_path / "run")
    best = read_best(tmp_path / "run")
    assert best
    assert (best["checkpoint"], best["name"], best["score"]) == ("000000004", FEATURE_SCORE, 0.25)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Best: checkpoint 2 of 3, at 4 images, lowest sliced Wasserstein distance of trained features" in page


def test_reports_the_error_of_the_cycle(config: Config):
    scores = _validation(config, 1.0, -0.5).score()
    lost = (0.5 * _Paint(1.0).shift).abs().mean().item()
    assert scores["validation/cycle_a"] == pytest.approx(lost, rel=1e-4)
    assert scores["validation/cycle_b"] == pytest.approx(lost, rel=1e-4)


def test_uses_held_out_pictures_only(config: Config):
    validation = _validation(config, 1.0, -1.0)
    assert validation.description == "2 held-out reds and 3 held-out greens"
    assert (len(validation.a), len(validation.b)) == (2, 3)
    assert validation.a.shape[1:] == (3, 32, 32)


class _Known(nn.Module):
    """Knows the true translations of some pictures; others stay as they are."""

    def __init__(self, truths: dict[bytes, Tensor]):
        super().__init__()
        self.truths = truths

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.truths.get(_key(one), one) for one in x])


def _key(image: Tensor) -> bytes:
    return ((image + 1) * 127.5).round().byte().permute(1, 2, 0).contiguous().numpy().tobytes()


class _Inverted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return -x


class _Same(nn.Module):
    """Gives the same picture for any."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.linspace(-1, 1, x.shape[-1]).expand_as(x)


class _Uneven(nn.Module):
    """Halves the sides and doubles them by a transposed convolution whose kernels overlap unevenly."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 3, 3, stride=2, padding=1, output_padding=1, groups=3, bias=False)
        nn.init.constant_(self.up.weight, 0.25)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(nn.functional.avg_pool2d(x, 2))


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, _Known, _Known]:
    """A folder of apples and oranges, and models that translate them without an error, both ways."""
    folder = tmp_path_factory.mktemp("rendered")
    truths: dict[Domain, dict[bytes, Tensor]] = {"A": {}, "B": {}}
    for domain, known in truths.items():
        (folder / f"train{domain}").mkdir()
        for number in range(24):
            shown = render("train", domain, number, image_size=32, seed=0)
            save_picture(folder / f"train{domain}" / f"{number:03d}.png", Picture(shown.image))
            image, truth = (torch.from_numpy(one).permute(2, 0, 1) / 127.5 - 1 for one in (shown.image, shown.truth))
            known[_key(image)] = truth
    return str(folder), _Known(truths["A"]), _Known(truths["B"])


@pytest.mark.parametrize(
    ("model", "sign"),
    [(_Inverted, "correlation"), (_Same, "spread"), (nn.Identity, "change"), (_Uneven, "checkerboard"), (None, "")],
)
def test_reports_models_that_fail(
    model: Callable[[], nn.Module] | None, sign: str, rendered: tuple[str, _Known, _Known], tiny_config: Any
):
    folder, there, back = rendered
    engine = {"device": "cpu", "precision": "fp32"}
    config = tiny_config(data={"path": (folder,), "validation": 12}, engine=engine)
    validation = _validate(config, InferenceGenerators({"a2b": model() if model else there, "b2a": back}))
    scores = validation.score()
    found = {one.name for one in find_failures([{"images": 1, **scores}, {"images": 2, **scores}])}
    assert {name for name in found if name.endswith("_b2a")} == set()
    assert (f"failure/{sign}_a2b" in found) if sign else not found


def test_reports_models_that_become_worse(rendered: tuple[str, _Known, _Known], tiny_config: Any):
    folder, there, back = rendered
    config = tiny_config(data={"path": (folder,), "validation": 12}, engine={"device": "cpu", "precision": "fp32"})

    def told(*models: nn.Module) -> list[str]:
        views = [InferenceGenerators({"a2b": model, "b2a": back}) for model in models]
        rows = [_validate(config, view).score() for view in views]
        return [one.name for one in find_failures([{"images": images, **row} for images, row in enumerate(rows)])]

    assert "validation/distance" in told(there, _Same(), _Same())
    assert told(_Same(), there, there) == []
    assert told(there, there, there) == []


def test_reports_a_discriminator_that_wins_without_held_out_pictures(config: Config, tmp_path: Path):
    said: list[str] = []
    train = {"length": "64 images", "log_every": "2 images", "patience": 2}
    rules = ("G_*:lr=1e-9", "D_*:lr=1e-2,schedule=constant")
    config = config.change(train=train, optimizer={"rules": rules}, data={"validation": 0})
    _train(config, tmp_path / "run", said)
    assert any("train.patience=2 has no effect without scores" in line for line in said)
    assert any("data.validation=0" in line and "no checkpoint will be chosen as best" in line for line in said)
    with pytest.raises(ValueError, match=r"data\.validation holds out"):
        find_checkpoint(tmp_path / "run", "best")
    told = [line for line in said if "tells every translation from real images" in line]
    assert told
    assert "a lower rate (optimizer.rules D_" in told[0]
    assert "tells every translation" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("data", "reason"), [({"validation": 0}, "data.validation=0"), ({"path": ("apples2oranges",)}, "fewer than 20")]
)
def test_reports_that_no_pictures_are_held_out(data: dict[str, Any], reason: str, config: Config):
    validation = _validation(config.change(data=data), 1.0, -1.0)
    assert reason in validation.disabled_reason
    assert "no checkpoint will be chosen as best" in validation.disabled_reason
    assert validation.description == ""


@pytest.mark.parametrize(
    ("scores", "baseline", "is_worse"),
    [
        ((0.2, 0.28), None, False),
        ((0.2, 0.31), None, True),
        ((0.2, 0.28), 0.4, False),  # closes 0.12, and the best closed 0.2
        ((0.2, 0.28), 0.3, True),  # 0.02 of 0.1
        ((0.2, 0.1), 0.3, False),
        ((0.2, 0.21), 0.212, False),
        ((0.2, 0.28, 0.24), 0.3, False),
        ((0.5, 0.6), 0.4, False),  # neither is closer than the unchanged input, nor much worse than the other
    ],
)
def test_the_last_checkpoint_is_worse_by_score_and_baseline(
    scores: tuple[float, ...], baseline: float | None, is_worse: bool
):
    known = {} if baseline is None else {IDENTITY_SCORE: baseline}
    stats = [{"images": images, SCORE: score, **known} for images, score in enumerate(scores, start=1)]
    assert final_checkpoint_is_worse(stats) == is_worse


@pytest.mark.parametrize(("baseline", "last", "message"), [(0.9, 0.8, "become worse"), (0.1, 0.2, "than the inputs")])
def test_reports_a_run_that_ends_badly_and_uses_its_best_checkpoint(
    baseline: float, last: float, message: str, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    scores = iter([0.2, last])
    monkeypatch.setattr(Validation, "score", lambda self: {SCORE: next(scores), IDENTITY_SCORE: baseline})
    run, lines = tmp_path / "run", list[str]()
    _train(config.change(train={"length": "2 images", "checkpoint_every": "1 images"}), run, lines)
    assert len([line for line in lines if message in line]) == 1
    used = "best" if last > 0.3 else "last"
    assert default_checkpoint(run) == used
    assert find_checkpoint(run, None) == find_checkpoint(run, used)
    assert load_translator(run).header["images_seen"] == (1 if last > 0.3 else 2)


@pytest.mark.parametrize("damaged", [False, True])
def test_uses_the_best_checkpoint_only_while_it_is_valid_and_the_worse_one_is_last(damaged: bool, tmp_path: Path):
    first, second = (
        save_checkpoint(tmp_path, images=images, networks={}, headers={}, state={}, clock={}) for images in (1, 2)
    )
    mark_best(tmp_path, checkpoint=first, name=SCORE, score=0.1, scored_on="some", instead_of=second)
    if damaged:
        (first / "state.safetensors").write_bytes(b"")
    assert find_checkpoint(tmp_path, None) == (second if damaged else first)
    newest = save_checkpoint(tmp_path, images=3, networks={}, headers={}, state={}, clock={})
    assert find_checkpoint(tmp_path, None) == newest


def test_scores_the_unchanged_input(config: Config, with_features: Config):
    for one in (config, with_features):
        validation = _validation(one, 0.0, 0.0)
        scores = validation.score()
        assert scores[IDENTITY_SCORE] == pytest.approx(scores[validation.name], rel=1e-5)


def test_scores_by_another_network_than_discriminators_use(config: Config, monkeypatch: pytest.MonkeyPatch):
    judge = {"network": "projected+basic", "features": "lite0", "channels": 4}
    taught = config.change(discriminator=judge, method={"gan": "hinge"})
    there = {"lite0": Path("lite0"), "lite2": None}
    monkeypatch.setattr("velogan.evaluation.validation.find_lite", there.get)
    assert _validation(taught, 1.0, -1.0).features == "lite0"
    there["lite2"] = Path("lite2")
    validation = _validation(taught, 1.0, -1.0)
    assert (validation.features, validation.name) == ("lite2", FEATURE_SCORE)
    assert validation.description.endswith(", by lite2")
    assert _validation(config, 1.0, -1.0).features is None


def test_marks_the_checkpoint_with_the_lowest_score(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    scores = iter([0.5, 0.25, float("nan"), 0.75, 0.125])
    monkeypatch.setattr(Validation, "score", lambda self: {SCORE: next(scores)})
    config = config.change(train={"length": "8 images", "checkpoint_every": "2 images", "keep": 1})
    run = tmp_path / "run"
    _train(config, run)
    on = "2 held-out reds and 3 held-out greens"
    best = {"checkpoint": "000000004", "name": SCORE, "score": 0.25, "on": on}
    assert read_best(run) == {**best, "instead_of": "000000008"}
    assert [path.name for path in list_checkpoints(run)] == ["000000004", "000000008"]
    rows = [(row["images"], row[SCORE]) for row in read_stats(run) if SCORE in row]
    assert rows == [(2, 0.5), (4, 0.25), (6, None), (8, 0.75)]
    assert "Best: checkpoint 2 of 3, at 4 images" in (run / "report.html").read_text()
    _train(config.change(train={"length": "9 images"}), run)
    assert json.loads((run / "checkpoints" / "best.json").read_text())["checkpoint"] == "000000009"


def test_ends_a_run_after_patience_validations_without_improvement(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    scores = iter([0.5, 0.25, 0.3, 0.4, 0.1])
    monkeypatch.setattr(Validation, "score", lambda self: {SCORE: next(scores)})
    config = config.change(train={"length": "20 images", "checkpoint_every": "2 images", "patience": 2})
    for starts in range(2):  # the second finds that it has ended
        result = _train(config, tmp_path / "run", said := [])
        assert (result.images_seen, result.finished) == (8, True)
        ended = "train.patience=2 ended this run at 8 images; --train.patience 0, or a larger one, resumes it"
        assert (ended in said) == (starts == 1)
    assert _train(config.change(train={"patience": 3, "length": "10 images"}), tmp_path / "run").images_seen == 10
