"""A run that stops and is continued by the same call computes what an unbroken one computes, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from velogan.config import Config
from velogan.engine.loss_scale import LossScale
from velogan.engine.trainer import Trainer
from velogan.observe.progress import Display
from velogan.training.run import train
from velogan.training.session import Result

FAST: dict[str, Any] = {"engine": {"threads": 1, "precision": "bf16"}}
SLOW: dict[str, Any] = {"engine": {"threads": 1, "mode": "reference"}}
CASES: dict[str, dict[str, Any]] = {
    "reference": SLOW | {"method": {"pool_size": 3}},
    "channels last": {"engine": {"threads": 1, "precision": "fp32", "kernels": "plain"}},
    "accumulated": FAST | {"train": {"accumulate": 2}, "method": {"pool_size": 3}},
    "float16": {"engine": {"threads": 1, "precision": "fp16"}},
    "batch norm": SLOW | {"generator": {"norm": "batch"}, "discriminator": {"norm": "batch"}},
    "projected": {
        "engine": {"threads": 1, "precision": "fp32"},
        "generator": {"output": "mask"},
        "discriminator": {"network": "projected+basic", "feature_size": 48},
        "method": {
            "gan": "hinge",
            "augment": ["colour", "shift", "cutout"],
            "pool_size": 3,
            "source_as_fake_fraction": 0.3,
        },
    },
    "dropout, stabilisers": FAST
    | {
        "generator": {"dropout": True},
        "discriminator": {"norm": "spectral"},
        "method": {"augment": ["shift"], "augment_probability": 0.7, "smoothing": 0.1, "pool_size": 3},
    },
    "one pair, batch of 2": FAST
    | {
        "generator": {"norm": "none"},
        "data": {"batch_size": 2},
        "method": {"kind": "onepair", "direction": "both", "pool_size": 3},
    },
    "contrast": FAST
    | {
        "generator": {"output": "mask", "blocks": 2},
        "method": {"kind": "contrast", "direction": "both", "edges": 5.0, "pool_size": 3, "augment": ["cutout"]},
    },
    "optimizers": FAST
    | {
        "optimizer": {
            "clip_norm": 0.1,
            "rules": (
                "G_A:kind=sgd,momentum=0.9,lr=1e-3,schedule=step,every=3 images",
                "D_A:kind=adamw,weight_decay=0.1",
                "G_B:kind=rmsprop,lr=1e-4,momentum=0.9,warmup=50 %",
            ),
        },
        "schedule": {"kind": "exponential", "gamma": 0.9, "every": "3 images", "warmup": "9 images"},
    },
}


def _train(config: Config, run: Path) -> Result:
    with Display() as display:
        return train(config, run, display=display, origin={"preset": "test", "command": "test"})


@pytest.mark.parametrize("case", [*CASES, "volumes", "annotated"])
def test_stopped_and_continued_equals_unbroken(
    case: str,
    tiny_config: Callable[..., Config],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
):
    changes = CASES.get(case) or FAST | {"data": request.getfixturevalue(case)}
    config = tiny_config(**changes).change(train={"length": "12 images", "ema_images": 8})  # an epoch has four
    monkeypatch.setattr(LossScale, "PATIENCE", 4)  # steps until float16's scale is doubled
    unbroken = _train(config, tmp_path / "unbroken")

    take_step, stops = Trainer._train_step, [6, 10]

    def step_and_stop(trainer: Trainer, batch: Any) -> None:
        take_step(trainer, batch)
        trainer.stop_requested = trainer.images in stops

    monkeypatch.setattr(Trainer, "_train_step", step_and_stop)
    results = [_train(config, tmp_path / "stopped") for _ in range(3)]

    assert [(result.images_seen, result.finished) for result in results] == [(6, False), (10, False), (12, True)]
    assert unbroken.finished
    assert results[-1].weights_sha256 == unbroken.weights_sha256
    assert len({result.weights_sha256 for result in results}) == 3


def test_a_longer_length_continues_a_finished_run(tiny_config: Callable[..., Config], tmp_path: Path):
    constant = tiny_config(schedule={"kind": "constant"}, engine={"precision": "fp32"})
    _train(constant, tmp_path / "run")
    longer = constant.change(train={"length": "10 images"})
    assert _train(longer, tmp_path / "run").weights_sha256 == _train(longer, tmp_path / "new").weights_sha256
