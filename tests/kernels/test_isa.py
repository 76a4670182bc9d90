from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from velogan.kernels import isa, native
from velogan.kernels.isa import ISA_LEVELS, LEVEL_VARIABLE, build_all, find_prebuilt, supported_levels
from velogan.kernels.norms import NormKernels

FLAGS = {
    "avx512-bf16": " ".join(ISA_LEVELS["avx512-bf16"].flags),
    "x86-64-v3": " ".join(ISA_LEVELS["x86-64-v3"].flags) + " avx512f",
    "": "sse4_2 avx",
}
"""Flags of CPUs by their best level."""


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch):
    """Set the CPU's flags and the requested level."""

    def set_cpu(flags: str, level: str = "") -> None:
        monkeypatch.setattr(isa, "cpu_flags", lambda: flags)
        monkeypatch.setenv(LEVEL_VARIABLE, level)

    return set_cpu


@pytest.mark.parametrize("best", FLAGS)
def test_finds_the_best_level_of_the_cpu(best: str, cpu):
    cpu(FLAGS[best])
    assert supported_levels()[:1] == [best] * bool(best)


def test_accepts_a_lower_level_and_rejects_others(cpu):
    cpu(FLAGS["avx512-bf16"], "x86-64-v4")
    assert supported_levels() == ["x86-64-v4", "x86-64-v3"]
    for level in ("x86-64-v4", "avx9"):
        cpu(FLAGS["x86-64-v3"], level)
        with pytest.raises(ValueError, match=f"VELOGAN_CPU_LEVEL='{level}': this CPU supports x86-64-v3; set"):
            supported_levels()


def test_finds_the_best_prebuilt_library_that_runs_here(cpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(isa, "HERE", tmp_path)
    (tmp_path / "built").mkdir()
    for name in ("norms-avx512-bf16", "norms-x86-64-v3", "winograd-avx512-bf16"):
        (tmp_path / "built" / f"{name}.so").touch()
    cpu(FLAGS["avx512-bf16"])
    assert [file.stem for file in find_prebuilt("norms")] == ["norms-avx512-bf16", "norms-x86-64-v3"]
    assert [file.stem for file in find_prebuilt("winograd")] == ["winograd-avx512-bf16"]
    cpu(FLAGS["avx512-bf16"], "x86-64-v4")
    assert [file.stem for file in find_prebuilt("norms")] == ["norms-x86-64-v3"]
    assert not find_prebuilt("winograd")


@pytest.mark.skipif("x86-64-v3" not in supported_levels(), reason="this CPU has no AVX2")
def test_a_lower_level_computes_the_same_without_a_compiler(cpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    here = native.load_kernels(tmp_path)
    if here is None:
        pytest.skip("there is no g++")
    lowest, package = ISA_LEVELS["x86-64-v3"], tmp_path / "package"
    with monkeypatch.context() as only:
        only.setattr(isa, "ISA_LEVELS", {"x86-64-v3": lowest})
        files = build_all(os.environ.get("CXX", "g++"), package / "built")
    assert [file.name for file in files] == ["norms-x86-64-v3.so", "fp32_gemm-x86-64-v3.so"]
    monkeypatch.setattr(isa, "HERE", package)
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    other = native.load_kernels(tmp_path / "unused")
    assert other is not None
    assert not (tmp_path / "unused").exists()
    x = torch.randn(2, 24, 9, 7, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(_norm(other, x), _norm(here, x), rtol=1e-6, atol=1e-6)


def _norm(kernels: NormKernels, x: torch.Tensor) -> torch.Tensor:
    return kernels.norm(x.contiguous(memory_format=torch.channels_last), slope=0.0, pad=1)[0]


def test_the_level_applies_to_torch():
    code = "import velogan, os; print(os.environ['ATEN_CPU_CAPABILITY'], os.environ['ONEDNN_MAX_CPU_ISA'])"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ATEN_", "ONEDNN_"))}
    for level in ISA_LEVELS:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=clean | {LEVEL_VARIABLE: level},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.startswith("avx2 AVX2" if level == "x86-64-v3" else "avx512 AVX512_CORE")


def test_a_library_links_neither_torch_nor_python(tmp_path: Path):
    """So one wheel serves all versions of both: the library is loaded here without either."""
    if native.load_kernels(tmp_path) is None:
        pytest.skip("there is no g++")
    (library,) = tmp_path.glob("norms-*.so")
    needed = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=True).stdout
    assert "torch" not in needed
    assert "python" not in needed
    assert ctypes.CDLL(str(library)).norm_forward
