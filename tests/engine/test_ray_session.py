"""Ray that does not start, or does not answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import velogan

ray = pytest.importorskip("ray", reason="the extra sweep is not installed")


def test_starts_with_a_long_temporary_path_and_a_folder_that_is_called_like_the_package(tmp_path: Path):
    """A clone's parent has such a folder; macOS has temporary paths of 49 letters, and sockets at most 103."""
    (tmp_path / "velogan").mkdir()
    (temporary := tmp_path / ("x" * 60)).mkdir()
    code = """
import sys
sys.path.append(sys.argv[1])
from velogan.engine.ray_session import ray_session
import ray
with ray_session(None):
    print(ray.get(ray.remote(lambda: __import__("velogan").__file__).remote()))
"""
    root = str(Path(velogan.__file__).parents[1])
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code, root],
        cwd=tmp_path,
        env={**environment, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == velogan.__file__
