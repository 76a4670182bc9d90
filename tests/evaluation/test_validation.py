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
from velogan.report.failures import find_failures
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
    return _looking(config, InferenceGenerators({"a2b": _Paint(there), "b2a": _Paint(back)}))


def _looking(config: Config, views: InferenceGenerators) -> Validation:
    return Validation(config.change(engine={"device": "cpu"}), find_sources(config.data), views)


@pytest.fixture
def config(two_folders: tuple[str, str], tiny_config: Callable[..., Config]) -> Config:
    return tiny_config(data={"path": two_folders}, engine={"device": "cpu", "precision": "fp32"})


def test_the_score_is_lowest_for_the_translation_to_the_other_domain(config: Config):
    right, half, nothing = (_validation(config, there, -there).score() for there in (1.0, 0.5, 0.0))
    assert right[SCORE] < half[SCORE] / 3 < nothing[SCORE] / 3
    for way in ("a2b", "b2a"):
        assert right[f"{SCORE}_{way}"] < half[f"{SCORE}_{way}"] < nothing[f"{SCORE}_{way}"]
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


def test_where_the_discriminator_has_trained_features_they_score(with_features: Config):
    validations = [_validation(with_features, there, -there) for there in (1.0, 0.5, 0.0)]
    assert {one.name for one in validations} == {FEATURE_SCORE}
    right, half, nothing = (one.score() for one in validations)
    assert right[FEATURE_SCORE] < half[FEATURE_SCORE] < nothing[FEATURE_SCORE]
    ways = [right[f"{FEATURE_SCORE}_{way}"] for way in ("a2b", "b2a")]
    assert right[FEATURE_SCORE] == pytest.approx(sum(ways) / 2)
    assert right[SCORE] < half[SCORE] < nothing[SCORE]


def test_and_choose_the_best_checkpoint(with_features: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    figures = iter([(0.1, 0.5), (0.2, 0.25), (0.3, 0.75)])
    monkeypatch.setattr(Validation, "score", lambda self: dict(zip((SCORE, FEATURE_SCORE), next(figures))))
    config = with_features.change(train={"length": "6 images", "checkpoint_every": "2 images"})
    _train(config, tmp_path / "run")
    best = read_best(tmp_path / "run")
    assert best
    assert (best["checkpoint"], best["name"], best["score"]) == ("000000004", FEATURE_SCORE, 0.25)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Best: checkpoint 2 of 3, at 4 images, lowest sliced Wasserstein distance of trained features" in page


def test_the_cycle_is_told_beside_the_score(config: Config):
    figures = _validation(config, 1.0, -0.5).score()
    lost = (0.5 * _Paint(1.0).shift).abs().mean().item()
    assert figures["validation/cycle_a"] == pytest.approx(lost, rel=1e-4)
    assert figures["validation/cycle_b"] == pytest.approx(lost, rel=1e-4)


def test_held_out_pictures_are_named_and_no_others_are_seen(config: Config):
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
def test_a_model_that_fails_is_told_and_a_good_one_is_not(
    model: Callable[[], nn.Module] | None, sign: str, rendered: tuple[str, _Known, _Known], tiny_config: Any
):
    folder, there, back = rendered
    engine = {"device": "cpu", "precision": "fp32"}
    config = tiny_config(data={"path": (folder,), "validation": 12}, engine=engine)
    validation = _looking(config, InferenceGenerators({"a2b": model() if model else there, "b2a": back}))
    figures = validation.score()
    found = {one.name for one in find_failures([{"images": 1, **figures}, {"images": 2, **figures}])}
    assert {name for name in found if name.endswith("_b2a")} == set()
    assert (f"failure/{sign}_a2b" in found) if sign else not found


def test_a_model_that_becomes_worse_is_told(rendered: tuple[str, _Known, _Known], tiny_config: Any):
    folder, there, back = rendered
    config = tiny_config(data={"path": (folder,), "validation": 12}, engine={"device": "cpu", "precision": "fp32"})

    def told(*models: nn.Module) -> list[str]:
        views = [InferenceGenerators({"a2b": model, "b2a": back}) for model in models]
        rows = [_looking(config, view).score() for view in views]
        return [one.name for one in find_failures([{"images": images, **row} for images, row in enumerate(rows)])]

    assert "validation/distance" in told(there, _Same(), _Same())
    assert told(_Same(), there, there) == []
    assert told(there, there, there) == []


def test_a_discriminator_that_wins_is_told_without_held_out_pictures(config: Config, tmp_path: Path):
    said: list[str] = []
    train = {"length": "64 images", "log_every": "2 images", "patience": 2}
    rules = ("G_*:lr=1e-9", "D_*:lr=1e-2,schedule=constant")
    config = config.change(train=train, optimizer={"rules": rules}, data={"validation": 0})
    _train(config, tmp_path / "run", said)
    assert any("train.patience=2 has no effect without scores" in line for line in said)
    told = [line for line in said if "tells every translation from real images" in line]
    assert told
    assert "a lower rate (optimizer.rules D_" in told[0]
    assert "tells every translation" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("data", "why"), [({"validation": 0}, "data.validation=0"), ({"path": ("apples2oranges",)}, "fewer than 20")]
)
def test_without_held_out_pictures_there_is_no_best_and_that_is_said(
    data: dict[str, Any], why: str, config: Config, tmp_path: Path
):
    said: list[str] = []
    _train(config.change(data=data), tmp_path / "run", said)
    assert any(why in line and "no checkpoint will be chosen as best" in line for line in said)
    assert read_best(tmp_path / "run") is None
    with pytest.raises(ValueError, match=r"data\.validation holds out"):
        find_checkpoint(tmp_path / "run", "best")


@pytest.mark.parametrize(
    ("scores", "nothing", "which"),
    [
        ((0.2, 0.28), None, "last"),
        ((0.2, 0.31), None, "best"),
        ((0.2, 0.28), 0.4, "last"),  # closes 0.12 where the best closed 0.2
        ((0.2, 0.28), 0.3, "best"),  # 0.02 of 0.1
        ((0.2, 0.1), 0.3, "last"),
        ((0.2, 0.21), 0.212, "last"),
        ((0.2, 0.28, 0.24), 0.3, "last"),
        ((0.5, 0.6), 0.4, "last"),  # neither is nearer than doing nothing, nor much worse than the other
    ],
)
def test_a_run_that_ends_badly_says_so_and_its_best_checkpoint_is_used(
    scores: tuple[float, ...],
    nothing: float | None,
    which: str,
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    figures, known = iter(scores), {} if nothing is None else {IDENTITY_SCORE: nothing}
    monkeypatch.setattr(Validation, "score", lambda self: {SCORE: next(figures), **known})
    length = {"length": f"{len(scores)} images", "checkpoint_every": "1 images"}
    said: list[str] = []
    run = tmp_path / "run"
    _train(config.change(train=length), run, said)
    assert default_checkpoint(run) == which
    assert find_checkpoint(run, None) == find_checkpoint(run, which)  # pyright: ignore[reportArgumentType]
    assert any("translations have become worse" in line for line in said) == (which == "best")
    assert any("closer to real images than the inputs" in line for line in said) == (scores[0] == 0.5)
    seen = load_translator(run).header["images_seen"]
    assert seen == (1 if which == "best" else len(scores))


def test_what_was_used_instead_is_used_no_more_when_training_goes_on(tmp_path: Path):
    folders = [
        save_checkpoint(tmp_path, images=images, networks={}, headers={}, state={}, clock={}) for images in (1, 2)
    ]
    mark_best(tmp_path, checkpoint=folders[0], name=SCORE, score=0.1, on="some", instead_of=folders[1])
    assert find_checkpoint(tmp_path, None) == folders[0]
    newest = save_checkpoint(tmp_path, images=3, networks={}, headers={}, state={}, clock={})
    assert find_checkpoint(tmp_path, None) == newest


def test_a_damaged_best_checkpoint_is_not_used_instead(tmp_path: Path):
    folders = [
        save_checkpoint(tmp_path, images=images, networks={}, headers={}, state={}, clock={}) for images in (1, 2)
    ]
    mark_best(tmp_path, checkpoint=folders[0], name=SCORE, score=0.1, on="some", instead_of=folders[1])
    (folders[0] / "state.safetensors").write_bytes(b"")
    assert find_checkpoint(tmp_path, None) == folders[1]


def test_doing_nothing_is_scored_by_the_same_figure(config: Config, with_features: Config):
    for one in (config, with_features):
        validation = _validation(one, 0.0, 0.0)
        figures = validation.score()
        assert figures[IDENTITY_SCORE] == pytest.approx(figures[validation.name], rel=1e-5)


def test_another_network_judges_than_the_one_that_taught(config: Config, monkeypatch: pytest.MonkeyPatch):
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


def test_the_best_checkpoint_is_the_one_with_the_lowest_score(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    figures = iter([0.5, 0.25, float("nan"), 0.75, 0.125])
    monkeypatch.setattr(Validation, "score", lambda self: {SCORE: next(figures)})
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


def test_a_run_ends_when_the_score_has_waited_for_long_enough(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    figures = iter([0.5, 0.25, 0.3, 0.4, 0.1])
    monkeypatch.setattr(Validation, "score", lambda self: {SCORE: next(figures)})
    config = config.change(train={"length": "20 images", "checkpoint_every": "2 images", "patience": 2})
    for starts in range(2):  # the second finds that it has ended
        result = _train(config, tmp_path / "run", said := [])
        assert (result.images_seen, result.finished) == (8, True)
        ended = "train.patience=2 ended this run at 8 images; --train.patience 0, or a larger one, resumes it"
        assert (ended in said) == (starts == 1)
    assert _train(config.change(train={"patience": 3, "length": "10 images"}), tmp_path / "run").images_seen == 10


def test_scoring_changes_nothing_that_training_computes(config: Config, tmp_path: Path):
    often, seldom = (
        _train(config.change(train={"length": "6 images", "checkpoint_every": every}), tmp_path / every)
        for every in ("1 images", "100 %")
    )
    assert often.weights_sha256 == seldom.weights_sha256
    assert len([row for row in read_stats(often.run) if SCORE in row]) == 6
