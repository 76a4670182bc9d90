"""Gradients of several batches in one update are those of one larger batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from velogan.config import Config
from velogan.data.sets.pair import Data
from velogan.training.build import build_step, build_trainer
from velogan.training.engine_settings import resolve_engine

from ..domains import domain_in_memory

SIDE = 32
METHODS: dict[str, dict[str, Any]] = {
    "cyclegan": {"augment": ["shift"]},
    "onepair": {"kind": "onepair", "direction": "both"},
}


def _trained(config: Config, seed: int) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """The weights after three updates of two images of each domain, and the losses on the way."""
    config = config.model_copy(update={"engine": resolve_engine(config)[0]})
    step, objective, nets = build_step(config, shape=(SIDE, SIDE))
    random, rows = torch.Generator().manual_seed(seed), []
    for number in range(3):
        batch = {side: torch.rand(2, 3, SIDE, SIDE, generator=random) * 2 - 1 for side in "AB"}
        batch["uniform"] = torch.rand(objective.num_uniforms["train"], 2, generator=random)
        rows.append(step({"train": batch}, number=number))
    return [value.detach() for net in nets.values() for value in net.parameters()], rows


@pytest.mark.parametrize("pool", [0, 2])
@pytest.mark.parametrize("method", METHODS)
def test_two_batches_of_one_train_like_one_batch_of_two(method: str, pool: int, tiny_config: Callable[..., Config]):
    # without Adam, which makes steps of full length out of gradients that are rounding errors
    config = tiny_config(
        method=METHODS[method] | {"pool_size": pool},
        optimizer={"kind": "sgd", "lr": 0.01, "clip_norm": 1.0},
        engine={"threads": 1, "precision": "fp32"},
    )
    close = 0
    for seed in (1, 2, 3):
        whole, losses = _trained(config.change(data={"batch_size": 2}), seed)
        parts, of_parts = _trained(config.change(train={"accumulate": 2}), seed)
        of_weights = all(torch.allclose(one, other, rtol=1e-4, atol=1e-6) for one, other in zip(parts, whole))
        close += of_weights and all(
            torch.allclose(part[name], loss[name], rtol=1e-4, atol=1e-6)
            for part, loss in zip(of_parts, losses, strict=True)
            for name in loss
        )
    assert close >= 2, "rounding may turn a ReLU's gradient on or off in one of the three"
    alone, _ = _trained(config.change(data={"batch_size": 2}, optimizer={"lr": 0.02}), 3)
    assert max(float((one - other).abs().max()) for one, other in zip(whole, alone)) > 1e-4  # they do move


def test_a_step_counts_all_images_of_its_update(tiny_config: Callable[..., Config]):
    pictures = [np.full((36, 36, 3), value, np.uint8) for value in range(6)]
    domain = domain_in_memory(pictures)
    config = tiny_config(train={"accumulate": 3}, data={"batch_size": 2}, engine={"precision": "fp32"})
    config = config.model_copy(update={"engine": resolve_engine(config)[0]})
    trainer = build_trainer(config, Data(sources=None, a=domain, b=domain))  # pyright: ignore
    assert trainer.batch_size == 6
    batches = trainer.loaders["train"].batches(0)
    assert next(batches)["A"].shape[0] == 6
    batches.close()


@pytest.mark.parametrize(
    ("field", "mend", "sections"),
    [
        ("train.accumulate=2", "train.accumulate=1", {"train": {"accumulate": 2}}),
        ("method.pool_size=3", "method.pool_size=0", {"method": {"pool_size": 3}}),
    ],
)
def test_pictures_of_several_sizes_are_refused(
    field: str, mend: str, sections: dict[str, Any], tiny_config: Callable[..., Config]
):
    domain = domain_in_memory([np.zeros((side, 32, 3), np.uint8) for side in (32, 36)])
    base = tiny_config(data={"preprocess": "none"}, method={"pool_size": 0})
    with pytest.raises(ValueError, match=f"{field} needs images of one size.*: set {mend} or a preprocess that"):
        build_trainer(base.change(**sections), Data(sources=None, a=domain, b=domain))  # pyright: ignore
