"""Classes that keep their place: a segmenter that learns from label maps, and its loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from velogan.config import Config
from velogan.data.pictures.images import Picture, save_picture
from velogan.networks.build import build_network
from velogan.objectives.base import LossOutput, Phase
from velogan.objectives.classes import SEGMENTER, SemanticConsistencyLoss, pseudo_labels, weighted_cross_entropy
from velogan.observe.progress import Display
from velogan.store.checkpoint import list_checkpoints, load_weights
from velogan.training.run import train

COLOURS = np.array([[0, 0, 0], [250, 20, 30], [20, 200, 250]], np.uint8)
NUMBERS = np.array([[0], [7], [26]], np.uint8)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Pictures of squares in A, dark and bright in B; maps of their classes, by colours and by numbers."""
    for index in range(4):
        for letter, levels in (("A", (40, 120, 200)), ("B", (215, 135, 55))):
            random = np.random.default_rng([index, ord(letter)])
            classes = random.integers(0, 3, (4, 4)).repeat(10, axis=0).repeat(10, axis=1)
            shown = np.array(levels, np.uint8)[classes][..., None].repeat(3, axis=2)
            noise = random.integers(-9, 10, shown.shape)
            folders = {
                f"train{letter}": (shown + noise).astype(np.uint8),
                f"colours{letter}": COLOURS[classes],
                f"numbers{letter}": NUMBERS[classes],
            }
            for folder, pixels in folders.items():
                (tmp_path / "set" / folder).mkdir(parents=True, exist_ok=True)
                save_picture(tmp_path / "set" / folder / f"{index}.png", Picture(pixels))
    return tmp_path / "set"


def _levels(classes: Tensor) -> Tensor:
    return torch.tensor([40.0, 120.0, 200.0])[classes] / 127.5 - 1


def test_only_what_the_segmenter_knows_counts() -> None:
    odds = torch.tensor([[0.95, 0.05], [0.04, 0.96], [0.6, 0.4], [0.99, 0.01]])
    logits = odds.log().T[None, :, None]  # (1, 2, 1, 4)
    told, sure = pseudo_labels(logits, None)
    assert told.tolist() == [[[0, 1, 0, 0]]]
    torch.testing.assert_close(sure, torch.tensor([[[0.95, 0.96, 0.0, 0.99]]]))
    labels = torch.tensor([[[0, 0, 1, -1]]])
    classes, right = pseudo_labels(logits, labels)
    assert classes is labels
    torch.testing.assert_close(right, torch.tensor([[[0.95, 0.04, 0.4, 0.0]]]))
    assert weighted_cross_entropy(logits, labels, torch.zeros(1, 1, 4)).item() == 0
    expected = nn.functional.cross_entropy(logits, told)
    torch.testing.assert_close(weighted_cross_entropy(logits, told, torch.ones(1, 1, 4)), expected)


class _Inner:
    """An objective of one phase, whose translation is its input turned by a network."""

    def __init__(self) -> None:
        self.draws: Mapping[str, int] = {"train": 0}
        self.state = nn.Module()

    def phases(self) -> list[Phase]:
        def loss(nets: dict[str, nn.Module], batch: dict[str, Tensor], cache: object) -> LossOutput:
            fake = nets["G_A"](batch["A"])
            return LossOutput(loss=fake.mean() * 0, logged={}, cache={"fake_b": fake})

        return [Phase(name="generator", trains=("G_A",), loss=loss)]  # pyright: ignore[reportArgumentType]


def test_the_loss_is_that_of_the_parts_of_a_batch_and_falls_as_classes_return() -> None:
    torch.manual_seed(0)
    objective = SemanticConsistencyLoss(_Inner(), lambda cache: {"a2b": cache["fake_b"]}, name="generator")
    learn, generator = objective.phases()
    segmenter = build_network({"network": "segmenter", "in_channels": 3, "classes": 3, "channels": 8})
    nets = {SEGMENTER: segmenter, "G_A": nn.Conv2d(3, 3, 1)}
    labels = torch.randint(0, 3, (4, 4, 4)).repeat_interleave(4, 1).repeat_interleave(4, 2)
    images = _levels(labels)[:, None].repeat(1, 3, 1, 1)
    batch = {"A": images, "B": images, "label_a": labels}
    optimizer = torch.optim.Adam(segmenter.parameters(), lr=1e-2)
    assert generator.loss(nets, batch, {}).logged["classes_a"].item() < 1.2  # little is known yet
    for _ in range(40):
        optimizer.zero_grad()
        out = learn.loss(nets, batch, {})
        out.loss.backward()
        optimizer.step()
    assert out.logged["right_a"] > 0.95
    half = torch.where(torch.arange(16) < 8, labels, -1)  # without a class, and neither right nor wrong
    assert learn.loss(nets, {**batch, "label_a": half}, {}).logged["right_a"] > 0.9
    with torch.no_grad():
        whole = generator.loss(nets, batch, {}).loss
        halves = [generator.loss(nets, {n: v[i : i + 2] for n, v in batch.items()}, {}).loss for i in (0, 2)]
        torch.testing.assert_close(whole, torch.stack(halves).mean())
        nets["G_A"] = nn.Identity()
        assert generator.loss(nets, batch, {}).loss < 0.5 * whole


def test_a_run_with_labels_keeps_its_segmenter_apart_from_its_generators(
    tiny_config: Callable[..., Config], pictures: Path, tmp_path: Path
) -> None:
    labels = {f"labels_{letter}": str(pictures / f"colours{letter.upper()}") for letter in "ab"}
    config = tiny_config(
        data={"path": (str(pictures),), "validation": 0, **labels},
        train={"length": "2 images"},
        optimizer={"rules": ("S:lr=1e-3",)},
    )
    with Display() as display:
        train(config, tmp_path / "run", display=display, origin={})
    told = (tmp_path / "run/stats.jsonl").read_text()
    for name in ("segmenter/classes_a", "segmenter/right_b", "generator/classes_a", "generator/classes_b"):
        assert name in told
    last = list_checkpoints(tmp_path / "run")[-1]
    header, weights = load_weights(last / "S.safetensors")
    assert header["colours"] == [[0, 0, 0], [20, 200, 250], [250, 20, 30]]
    build_network(header).load_state_dict(weights)
    for name in ("G_A", "G_B.ema"):
        header, weights = load_weights(last / f"{name}.safetensors")
        build_network(header).load_state_dict(weights)


def test_one_labelled_domain_suffices_and_a_one_sided_method_takes_it(
    tiny_config: Callable[..., Config], pictures: Path, tmp_path: Path
) -> None:
    of = {"path": (str(pictures),), "validation": 0, "labels_b": str(pictures / "numbersB")}
    config = tiny_config(method="contrast", data=of, train={"length": "2 images"})
    with Display() as display:
        train(config, tmp_path / "run", display=display, origin={})
    told = (tmp_path / "run/stats.jsonl").read_text()
    assert "generator/classes_a" in told
    assert "segmenter/classes_b" in told
