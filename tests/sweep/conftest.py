from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from velogan.config import Config
from velogan.sweep.plan import SweepPlan


@pytest.fixture(scope="session", autouse=True)
def _apart_from_other_sweeps() -> Iterator[None]:
    """Workers of Ray find the package; Ray's files lie in a folder of these tests alone."""
    root, folder = str(Path(__file__).resolve().parents[2]), tempfile.mkdtemp(prefix="v")  # Ray's sockets: short paths
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])))
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def tiny_plan(tiny_config: Callable[..., Config]) -> Callable[..., SweepPlan]:
    """A sweep of runs of a few images, with held-out pictures."""

    def make(**changes: Any) -> SweepPlan:
        base = tiny_config(
            data={"render_count": 22, "validation": 2},
            train={"checkpoint_every": "2 images"},
            engine={"threads": None, "kernels": "plain", "precision": "fp32"},
        )
        return SweepPlan(**{"bases": {"cyclegan": base}, "budget": "6 images"} | changes)

    return make
