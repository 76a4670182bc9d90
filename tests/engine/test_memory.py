from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_FAULTS = """
import resource, torch
from velogan.engine.memory import keep_freed_memory
def step():
    for size in (3, 40, 100):  # MB: below and above what glibc ever keeps by itself
        torch.zeros(size << 18).add_(1)
def faults():
    for _ in range(3):
        step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
plain = faults()
assert keep_freed_memory()
print(plain, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_reuses_freed_memory_with_few_page_faults() -> None:
    result = subprocess.run([sys.executable, "-c", _FAULTS], check=True, capture_output=True, text=True)
    plain, reused = map(int, result.stdout.split())
    assert reused < plain / 10
