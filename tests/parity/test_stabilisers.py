"""Stabilisers keep state beside the weights: a captured step computes what a plain one does.

The recorder is a stand-in, so that this needs no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from velogan.config import Config
from velogan.engine.capture import CapturedStep
from velogan.engine.optimizers import make_capturable
from velogan.engine.step import Step

from ..steps import build, random_batch

STEPS = 7
SHARED: dict[str, Any] = {"smoothing": 0.1, "pool_size": 2}
CASES: dict[str, dict[str, Any]] = {
    "cyclegan": SHARED | {"source_as_fake_fraction": 0.3, "augment": ["colour", "shift"], "augment_probability": 0.7},
    "contrast": SHARED
    | {"kind": "contrast", "direction": "both", "source_as_fake_fraction": 0.3, "augment": ["shift"]},
    "onepair": SHARED | {"kind": "onepair", "direction": "both"},
}


def _losses(config: Config, recorder: Any) -> Iterator[dict[str, float]]:
    step, objective, _ = build(config)
    assert isinstance(step, Step)
    if recorder is None:
        make_capturable(step.optimizers)  # learning rates of the same type
    else:
        deferred = Step(
            step.phases,
            nets=step.nets,
            forward_nets=step.forward_nets,
            optimizers=step.optimizers,
            options=replace(step.options, channels_last=True, defer_nonfinite_check=True),
        )
        step = CapturedStep(deferred, state=objective.state, recorder=recorder)
    random = torch.Generator().manual_seed(1)
    for number in range(STEPS):
        batch = random_batch(random, objective, count=config.images_per_update)
        yield {name: float(value) for name, value in step({"train": batch}, number=number).items()}


@pytest.mark.parametrize("case", CASES)
def test_a_captured_step_with_stabilisers_equals_the_plain_one(
    case: str, recorder: Any, tiny_config: Callable[..., Config]
):
    config = tiny_config(
        train={"accumulate": 2 if case == "onepair" else 1},
        discriminator={"norm": "spectral"},
        generator={"norm": "none", "decoder": "resize"},
        method=CASES[case],
        engine={"threads": 1, "precision": "fp32"},
    )
    plain, captured = list(_losses(config, None)), list(_losses(config, recorder))
    assert captured == plain
    assert recorder.recordings == 1
