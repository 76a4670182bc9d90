from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from velogan.kernels import levels, native
from velogan.kernels.levels import LEVELS, SETTING, build_all, built, usable
from velogan.kernels.norms import NormKernels

FLAGS = {
    "avx512-bf16": " ".join(LEVELS["avx512-bf16"].needs),
    "x86-64-v3": " ".join(LEVELS["x86-64-v3"].needs) + " avx512f",
    "": "sse4_2 avx",
}
"""What CPUs say of themselves whose best level this is."""


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch):
    """Sets the CPU's instructions and the level asked for."""

    def this_is(flags: str, asked: str = "") -> None:
        monkeypatch.setattr(levels, "cpu_flags", lambda: flags)
        monkeypatch.setenv(SETTING, asked)

    return this_is


@pytest.mark.parametrize("best", FLAGS)
def test_the_best_level_is_that_of_the_cpu(best: str, cpu):
    cpu(FLAGS[best])
    assert usable()[:1] == [best] * bool(best)


def test_a_lower_level_can_be_asked_for_and_a_higher_one_is_refused(cpu):
    cpu(FLAGS["avx512-bf16"], "x86-64-v4")
    assert usable() == ["x86-64-v4", "x86-64-v3"]
    cpu(FLAGS["x86-64-v3"], "x86-64-v4")
    with pytest.raises(ValueError, match=r"VELOGAN_CPU_LEVEL='x86-64-v4' is no level of this CPU, which has x86-64-v3"):
        usable()
    cpu(FLAGS["x86-64-v3"], "avx9")
    with pytest.raises(ValueError, match="VELOGAN_CPU_LEVEL='avx9' is no level of this CPU, which has "):
        usable()


def test_of_the_libraries_that_are_there_the_best_that_runs_here_is_loaded(
    cpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(levels, "HERE", tmp_path)
    (tmp_path / "built").mkdir()
    for name in ("norms-avx512-bf16", "norms-x86-64-v3", "winograd-avx512-bf16"):
        (tmp_path / "built" / f"{name}.so").touch()
    cpu(FLAGS["avx512-bf16"])
    assert [file.stem for file in built("norms")] == ["norms-avx512-bf16", "norms-x86-64-v3"]
    assert [file.stem for file in built("winograd")] == ["winograd-avx512-bf16"]
    cpu(FLAGS["avx512-bf16"], "x86-64-v4")
    assert [file.stem for file in built("norms")] == ["norms-x86-64-v3"]
    assert not built("winograd")


@pytest.mark.skipif("x86-64-v3" not in usable(), reason="this CPU has no AVX2")
def test_a_lower_level_computes_the_same_to_rounding_and_needs_no_compiler(
    cpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    here = native.load_kernels(tmp_path)
    if here is None:
        pytest.skip("there is no g++")
    lowest, one = LEVELS["x86-64-v3"], tmp_path / "package"
    with monkeypatch.context() as only:
        only.setattr(levels, "LEVELS", {"x86-64-v3": lowest})
        made = build_all(os.environ.get("CXX", "g++"), one / "built")
    assert [file.name for file in made] == ["norms-x86-64-v3.so", "fp32_gemm-x86-64-v3.so"]
    monkeypatch.setattr(levels, "HERE", one)
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    other = native.load_kernels(tmp_path / "unused")
    assert other is not None
    assert not (tmp_path / "unused").exists()
    x = torch.randn(2, 24, 9, 7, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(_norm(other, x), _norm(here, x), rtol=1e-6, atol=1e-6)


def _norm(kernels: NormKernels, x: torch.Tensor) -> torch.Tensor:
    return kernels.norm(x.contiguous(memory_format=torch.channels_last), slope=0.0, pad=1)[0]


def test_torch_keeps_to_the_level_too():
    code = "import velogan, os; print(os.environ['ATEN_CPU_CAPABILITY'], os.environ['ONEDNN_MAX_CPU_ISA'])"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ATEN_", "ONEDNN_"))}
    for level in LEVELS:
        done = subprocess.run(
            [sys.executable, "-c", code], env=clean | {SETTING: level}, capture_output=True, text=True, check=True
        )
        assert done.stdout.startswith("avx2 AVX2" if level == "x86-64-v3" else "avx512 AVX512_CORE")


def test_a_library_knows_nothing_of_torch_and_python(tmp_path: Path):
    """So one wheel serves all versions of both: it is loaded here without either."""
    if native.load_kernels(tmp_path) is None:
        pytest.skip("there is no g++")
    (library,) = tmp_path.glob("norms-*.so")
    needed = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=True).stdout
    assert "torch" not in needed
    assert "python" not in needed
    assert ctypes.CDLL(str(library)).norm_forward
