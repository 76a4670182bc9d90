"""Compile native code for levels of CPU instructions (ISA): all levels for a wheel, else the level of this machine.

A library has a plain C interface and does not depend on torch or Python, so one file serves all versions of both.
"""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent

LEVEL_VARIABLE = "VELOGAN_CPU_LEVEL"
"""The environment variable that limits the level; `velogan/__init__.py` applies it to torch and oneDNN, too."""

LIBRARIES: dict[str, tuple[str, ...]] = {
    "norms": ("norms.cpp",),
    "fp32_gemm": ("winograd32.cpp", "conv_weight_grad32.cpp"),
    "winograd": ("winograd.cpp", "conv_weight_grad.cpp", "thin.cpp", "frozen.cpp"),
}
"""Source files of each library."""

_OPTIONS = "-O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math -fopenmp -shared -fPIC -std=c++17"
_V3 = "avx avx2 bmi1 bmi2 f16c fma abm movbe"
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl"


@dataclass(frozen=True)
class IsaLevel:
    """A set of CPU instructions, for which `libraries` are compiled."""

    flags: frozenset[str]
    """Required flags of /proc/cpuinfo."""
    options: str
    libraries: tuple[str, ...] = ("norms", "fp32_gemm")


ISA_LEVELS: dict[str, IsaLevel] = {
    "avx512-bf16": IsaLevel(
        frozenset(f"{_V4} avx512_bf16".split()), "-march=x86-64-v4 -mavx512bf16", ("norms", "fp32_gemm", "winograd")
    ),
    "x86-64-v4": IsaLevel(frozenset(_V4.split()), "-march=x86-64-v4"),
    "x86-64-v3": IsaLevel(frozenset(_V3.split()), "-march=x86-64-v3"),
}
"""Levels by name, the best one first."""


def supported_levels() -> list[str]:
    """Return the levels that this CPU supports and LEVEL_VARIABLE allows, the best one first.

    Raises ValueError if LEVEL_VARIABLE is not a level that this CPU supports.
    """
    available = frozenset(cpu_flags().split())
    supported = [name for name, level in ISA_LEVELS.items() if level.flags <= available]
    limit = os.environ.get(LEVEL_VARIABLE)
    if limit and limit not in supported:
        raise ValueError(
            f"{LEVEL_VARIABLE}={limit!r:.40}: this CPU supports {', '.join(supported) or 'no level'}; set one of "
            "these, or unset it"
        )
    return supported[supported.index(limit) :] if limit else supported


def find_prebuilt(name: str) -> list[Path]:
    """Return the files of the library `name` in this wheel that run on this CPU, the best one first."""
    files = [HERE / "built" / f"{name}-{level}.so" for level in supported_levels()]
    return [file for file in files if file.exists()]


def compile_command(compiler: str, name: str, *, level: str | None) -> list[str]:
    """Return the command, without `-o FILE`, that compiles the library `name` for `level`; None: this machine."""
    machine = "-march=native" if level is None else ISA_LEVELS[level].options
    return [compiler, *_OPTIONS.split(), *machine.split(), *(str(HERE / source) for source in LIBRARIES[name])]


def build_all(compiler: str, folder: Path) -> list[Path]:
    """Compile all libraries for all levels into `folder`, for a wheel; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for level_name, level in ISA_LEVELS.items():
        for name in level.libraries:
            files.append(folder / f"{name}-{level_name}.so")
            command = compile_command(compiler, name, level=level_name)
            subprocess.run([*command, "-s", "-o", str(files[-1])], check=True)
    return files


def cpu_flags() -> str:
    """Return this CPU's flags from /proc/cpuinfo; empty if there is no such file, or on an unknown architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    line = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return line.partition(":")[2].strip() if platform.machine() in ("x86_64", "AMD64", "aarch64") else ""
