"""Gradients of several batches in one update are those of one larger batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from velogan.config import Config
from velogan.data.sets.pair import TrainingData
from velogan.training.build import build_trainer
from velogan.training.engine_settings import resolve_engine

from ..domains import domain_in_memory
from ..steps import build, random_batch

METHODS: dict[str, dict[str, Any]] = {
    "cyclegan": {"augment": ["shift"]},
    "onepair": {"kind": "onepair", "direction": "both"},
}


def _train(config: Config, seed: int) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Return the weights after three updates of two images of each domain, and the losses."""
    (step, objective, nets), random = build(config), torch.Generator().manual_seed(seed)
    batches = [random_batch(random, objective, count=2) for _ in range(3)]
    losses = [step({"train": batch}, number=number) for number, batch in enumerate(batches)]
    return [value.detach() for net in nets.values() for value in net.parameters()], losses


def _is_close(pairs: Any) -> bool:
    return all(torch.allclose(first, second, rtol=1e-4, atol=1e-6) for first, second in pairs)


@pytest.mark.parametrize("pool", [0, 2])
@pytest.mark.parametrize("method", METHODS)
def test_two_batches_of_one_train_like_one_batch_of_two(method: str, pool: int, tiny_config: Callable[..., Config]):
    # without Adam, which makes steps of full length out of gradients that are rounding errors
    config = tiny_config(
        method=METHODS[method] | {"pool_size": pool},
        optimizer={"kind": "sgd", "lr": 0.01, "clip_norm": 1.0},
        engine={"threads": 1, "precision": "fp32"},
    )
    num_close = 0
    for seed in (1, 2, 3):
        weights, losses = _train(config.change(data={"batch_size": 2}), seed)
        accumulated_weights, accumulated_losses = _train(config.change(train={"accumulate": 2}), seed)
        num_close += _is_close(zip(accumulated_weights, weights, strict=True)) and all(
            _is_close((row[name], second[name]) for name in row)
            for row, second in zip(losses, accumulated_losses, strict=True)
        )
    assert num_close >= 2, "rounding may turn a ReLU's gradient on or off in one of the three"
    faster, _ = _train(config.change(data={"batch_size": 2}, optimizer={"lr": 0.02}), 3)
    assert max(float((first - second).abs().max()) for first, second in zip(weights, faster)) > 1e-4  # they do move


def test_a_step_counts_all_images_of_its_update(tiny_config: Callable[..., Config]):
    domain = domain_in_memory([np.full((36, 36, 3), value, np.uint8) for value in range(6)])
    config = tiny_config(train={"accumulate": 3}, data={"batch_size": 2}, engine={"precision": "fp32"})
    config = config.model_copy(update={"engine": resolve_engine(config)[0]})
    trainer = build_trainer(config, TrainingData(sources=None, a=domain, b=domain))  # pyright: ignore
    assert trainer.images_per_step == len(next(trainer.loaders["train"].batches(0))["A"]) == 6


@pytest.mark.parametrize(
    ("field", "fix", "sections"),
    [
        ("train.accumulate=2", "train.accumulate=1", {"train": {"accumulate": 2}}),
        ("method.pool_size=3", "method.pool_size=0", {"method": {"pool_size": 3}}),
    ],
)
def test_rejects_images_of_several_sizes(field: str, fix: str, sections: Any, tiny_config: Callable[..., Config]):
    domain = domain_in_memory([np.zeros((side, 32, 3), np.uint8) for side in (32, 36)])
    base = tiny_config(data={"preprocess": "none"}, method={"pool_size": 0})
    with pytest.raises(ValueError, match=f"{field} needs images of one size.*: set {fix} or a preprocess that"):
        build_trainer(base.change(**sections), TrainingData(sources=None, a=domain, b=domain))  # pyright: ignore
