from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from velogan.config import Config
from velogan.sweep.plan import Plan


@pytest.fixture(autouse=True)
def _children_find_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(Path(__file__).resolve().parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])))


@pytest.fixture
def tiny_plan(tiny_config: Callable[..., Config]) -> Callable[..., Plan]:
    """A sweep of runs of a few images, with held-out pictures."""

    def make(**changes: Any) -> Plan:
        base = tiny_config(
            data={"render_count": 22, "validation": 2}, train={"checkpoint_every": "2 images"}, engine={"threads": None}
        )
        return Plan(**{"bases": {"cyclegan": base}, "budget": "6 images"} | changes)

    return make
