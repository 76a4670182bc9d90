from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from velogan.config import Config
from velogan.sweep import attempt
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
            engine={"threads": None, "kernels": "plain", "precision": "fp32"},
        )
        return Plan(**{"bases": {"cyclegan": base}, "budget": "6 images"} | changes)

    return make


class _Forked:
    """Stands for subprocess.Popen: a trial's process, forked from one that has imported everything."""

    returncode: int | None = None

    def __init__(self, zygote: Callable[[dict], Any], request: Path, said: str):
        self._ask, self._out = zygote, request.with_suffix(".out")
        parent = json.loads(request.read_text())["parent"]
        code = "import os, sys, velogan.sweep.child as child\nos.setsid()\n"
        code += f"os.getppid = lambda: {parent}\nsys.exit(child.main([{str(request)!r}]))"
        self.pid = zygote({"argv": [], "said": said, "out": str(self._out), "code": code})

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._ask({"wait": self.pid, "poll": True})
        return self.returncode

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def communicate(self) -> tuple[str, None]:
        if self.returncode is None:
            self.returncode = self._ask({"wait": self.pid})
        text = self._out.read_text()
        self._out.unlink()
        return text, None


@pytest.fixture
def forked(zygote: Callable[[dict], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials of this process are forked from the zygote, which spares their imports."""

    def popen(command: list[str], *, stderr: Any, **_rest: Any) -> _Forked:
        return _Forked(zygote, Path(command[-1]), stderr.name)

    monkeypatch.setattr(attempt.subprocess, "Popen", popen)
