from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from velogan.config import Config
from velogan.sweep.plan import SweepPlan


@pytest.fixture
def tiny_plan(tiny_config: Callable[..., Config]) -> Callable[..., SweepPlan]:
    """Return a function that makes a sweep of runs of a few images, with held-out images."""

    def make(**changes: Any) -> SweepPlan:
        base = tiny_config(
            data={"render_count": 22, "validation": 2},
            train={"checkpoint_every": "2 images"},
            engine={"threads": None, "kernels": "plain", "precision": "fp32"},
        )
        return SweepPlan(**{"bases": {"cyclegan": base}, "images": 6} | changes)

    return make
