"""Losses on masks and label maps, and the segmenter that learns from label maps."""

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
from velogan.objectives.masks import outside_mask_loss
from velogan.observe.log import read_stats
from velogan.observe.progress import Display
from velogan.store.checkpoint import list_checkpoints, load_weights
from velogan.training.run import train

COLOURS = np.array([[0, 0, 0], [250, 20, 30], [20, 200, 250]], np.uint8)
NUMBERS = np.array([[0], [7], [26]], np.uint8)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Pictures of squares in A, and their negatives in B; maps of their classes, by colours and by numbers; masks."""
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
                f"mask{letter}": (classes[..., None] == 2).astype(np.uint8) * 255,
            }
            for folder, pixels in folders.items():
                (tmp_path / "set" / folder).mkdir(parents=True, exist_ok=True)
                save_picture(tmp_path / "set" / folder / f"{index}.png", Picture(pixels))
    return tmp_path / "set"


def _levels(classes: Tensor) -> Tensor:
    return torch.tensor([40.0, 120.0, 200.0])[classes] / 127.5 - 1


def test_change_outside_mask_is_the_mean_where_the_mask_is_0() -> None:
    source = torch.zeros(2, 3, 4, 4)
    fake, mask = source.clone(), torch.zeros(2, 1, 4, 4)
    mask[:, :, :2] = 1
    fake[:, :, :2] = 9.0
    assert outside_mask_loss(fake, source, mask).item() == 0
    fake[0, :, 2:] = 0.5
    assert outside_mask_loss(fake, source, mask).item() == pytest.approx(0.25)
    assert outside_mask_loss(fake, source, torch.ones_like(mask)).item() == 0


def test_pixels_count_by_the_segmenters_confidence() -> None:
    odds = torch.tensor([[0.95, 0.05], [0.04, 0.96], [0.6, 0.4], [0.99, 0.01]])
    logits = odds.log().T[None, :, None]  # (1, 2, 1, 4)
    classes, confidence = pseudo_labels(logits, None)
    assert classes.tolist() == [[[0, 1, 0, 0]]]
    torch.testing.assert_close(confidence, torch.tensor([[[0.95, 0.96, 0.0, 0.99]]]))
    labels = torch.tensor([[[0, 0, 1, -1]]])
    targets, weights = pseudo_labels(logits, labels)
    assert targets is labels
    torch.testing.assert_close(weights, torch.tensor([[[0.95, 0.04, 0.4, 0.0]]]))
    assert weighted_cross_entropy(logits, labels, torch.zeros(1, 1, 4)).item() == 0
    expected = nn.functional.cross_entropy(logits, classes)
    torch.testing.assert_close(weighted_cross_entropy(logits, classes, torch.ones(1, 1, 4)), expected)


class _Inner:
    """An objective of one phase without a loss of its own."""

    def __init__(self) -> None:
        self.num_uniforms: Mapping[str, int] = {"train": 0}
        self.state = nn.Module()

    def phases(self) -> list[Phase]:
        def loss(nets: dict[str, nn.Module], batch: dict[str, Tensor], cache: object) -> LossOutput:
            fake = nets["G_A"](batch["A"])
            return LossOutput(loss=fake.mean() * 0, terms={}, cache={"fake_b": fake})

        return [Phase(name="generator", trains=("G_A",), loss=loss)]  # pyright: ignore[reportArgumentType]


def test_semantic_loss_is_the_mean_over_microbatches_and_falls_as_classes_return() -> None:
    torch.manual_seed(0)
    objective = SemanticConsistencyLoss(_Inner(), lambda cache: {"a2b": cache["fake_b"]}, phase_name="generator")
    segmenter_phase, generator = objective.phases()
    segmenter = build_network({"network": "segmenter", "in_channels": 3, "classes": 3, "channels": 8})
    nets = {SEGMENTER: segmenter, "G_A": nn.Conv2d(3, 3, 1)}
    labels = torch.randint(0, 3, (4, 4, 4)).repeat_interleave(4, 1).repeat_interleave(4, 2)
    images = _levels(labels)[:, None].repeat(1, 3, 1, 1)
    batch = {"A": images, "B": images, "label_a": labels}
    optimizer = torch.optim.Adam(segmenter.parameters(), lr=1e-2)
    assert generator.loss(nets, batch, {}).terms["semantic_a"].item() < 1.2  # hardly trained
    for _ in range(40):
        optimizer.zero_grad()
        out = segmenter_phase.loss(nets, batch, {})
        out.loss.backward()
        optimizer.step()
    assert out.terms["accuracy_a"] > 0.95
    half = torch.where(torch.arange(16) < 8, labels, -1)  # pixels without a class do not count
    assert segmenter_phase.loss(nets, {**batch, "label_a": half}, {}).terms["accuracy_a"] > 0.9
    with torch.no_grad():
        loss = generator.loss(nets, batch, {}).loss
        halves = [generator.loss(nets, {n: v[i : i + 2] for n, v in batch.items()}, {}).loss for i in (0, 2)]
        torch.testing.assert_close(loss, torch.stack(halves).mean())
        nets["G_A"] = nn.Identity()
        assert generator.loss(nets, batch, {}).loss < 0.5 * loss


def _train(config: Config, run: Path) -> set[str]:
    """Train, and return the names of what was logged."""
    with Display() as display:
        train(config, run, display=display, origin={})
    return {name.removeprefix("loss/") for row in read_stats(run) for name in row}


def test_a_run_logs_annotation_losses_and_saves_its_segmenter_by_itself(
    tiny_config: Callable[..., Config], pictures: Path, tmp_path: Path
) -> None:
    annotations = {f"labels_{letter}": str(pictures / f"colours{letter.upper()}") for letter in "ab"}
    annotations |= {f"masks_{letter}": str(pictures / f"mask{letter.upper()}") for letter in "ab"}
    config = tiny_config(
        data={"path": (str(pictures),), "validation": 0, **annotations},
        train={"length": "2 images"},
        optimizer={"rules": ("S:lr=1e-3",)},
    )
    expected = {"segmenter/cross_entropy", "segmenter/accuracy", "generator/semantic", "generator/mask"}
    assert {f"{name}_{letter}" for name in expected for letter in "ab"} <= _train(config, tmp_path / "run")
    last = list_checkpoints(tmp_path / "run")[-1]
    for name in ("S", "G_A", "G_B.ema"):
        header, weights = load_weights(last / f"{name}.safetensors")
        build_network(header).load_state_dict(weights)
        assert ("colours" in header) == (name == "S")
    assert load_weights(last / "S.safetensors")[0]["colours"] == [[0, 0, 0], [20, 200, 250], [250, 20, 30]]


def test_a_method_of_one_direction_needs_annotations_of_one_domain(
    tiny_config: Callable[..., Config], pictures: Path, tmp_path: Path
) -> None:
    annotations = {"labels_b": str(pictures / "numbersB"), "masks_a": str(pictures / "maskA")}
    data = {"path": (str(pictures),), "validation": 0, **annotations}
    config = tiny_config(method="contrast", data=data, train={"length": "2 images"})
    expected = {"generator/semantic_a", "generator/mask_a", "segmenter/cross_entropy_b"}
    assert expected <= _train(config, tmp_path / "run")
