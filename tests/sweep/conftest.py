from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from velogan.config import Config
from velogan.sweep.plan import Plan


@pytest.fixture(scope="session", autouse=True)
def _apart_from_other_sweeps() -> Iterator[None]:
    """Children find the package; locks of cores and Ray's files lie in a folder of these tests alone.

    Else a test would wait until a sweep of the same user gives its cores back.
    """
    root, folder = str(Path(__file__).resolve().parents[2]), tempfile.mkdtemp(prefix="v")  # Ray's sockets: short paths
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])))
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def tiny_plan(tiny_config: Callable[..., Config]) -> Callable[..., Plan]:
    """A sweep of runs of a few images, with held-out pictures."""

    def make(**changes: Any) -> Plan:
        base = tiny_config(
            data={"render_count": 22, "validation": 2},
            train={"checkpoint_every": "2 images"},
            engine={"threads": None, "kernels": "plain"},
        )
        return Plan(**{"bases": {"cyclegan": base}, "budget": "6 images"} | changes)

    return make
