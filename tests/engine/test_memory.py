from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from velogan.engine import memory

_FAULTS = """
import resource, torch
from velogan.engine.memory import keep_freed_memory
if {keep}:
    assert keep_freed_memory()
def step():
    for size in (3, 40, 100):  # MB: below and above what glibc ever keeps by itself
        torch.zeros(size << 18).add_(1)
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is about glibc")
def test_freed_memory_is_used_again_without_asking_the_system() -> None:
    faults = {}
    for keep in (False, True):
        command = [sys.executable, "-c", _FAULTS.format(keep=keep)]
        faults[keep] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert faults[True] < faults[False] / 10


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    assert not memory.keep_freed_memory()
