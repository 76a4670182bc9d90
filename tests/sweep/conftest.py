from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from velogan.config import Config
from velogan.engine import child
from velogan.sweep.plan import SweepPlan


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


class _Forked:
    """Stands for subprocess.Popen: a trial's process, forked from one that has imported everything."""

    def __init__(self, zygote: Callable[[dict], Any], module: str, said: str, out: Path):
        self._zygote, self._module, self._files = zygote, module, {"said": said, "out": str(out)}
        self.returncode: int | None = None

    def communicate(self, request: str | None = None, timeout: float | None = None) -> tuple[str, None]:
        if request is not None:
            code = "import io, os, runpy, sys\nos.setsid()\n"
            code += f"os.getppid = lambda: {os.getpid()}\nsys.stdin = io.StringIO({request!r})\n"
            code += f"runpy.run_module({self._module!r}, run_name='__main__')"
            self.pid = self._zygote({"argv": [], "code": code, **self._files})
        if timeout:
            time.sleep(timeout)
        self.returncode = self._zygote({"wait": self.pid, "poll": bool(timeout)})
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self._module, timeout or 0)
        return Path(self._files["out"]).read_text(), None

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)


@pytest.fixture
def forked(zygote: Callable[[dict], Any], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: Any) -> None:
    """Trials of this process are forked from the zygote, which spares their imports."""

    def popen(command: list[str], *, stderr: Any, **_rest: Any) -> _Forked:
        return _Forked(zygote, command[-1], stderr.name, tmp_path_factory.mktemp("child") / "out")

    monkeypatch.setattr(child.subprocess, "Popen", popen)
