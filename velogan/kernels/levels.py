"""Native code by the instructions that it may use: compiled when a wheel is built, or here, for this machine.

A library has a plain C interface and knows nothing of torch or Python, so that one file serves all versions of both.
"""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent

SETTING = "VELOGAN_CPU_LEVEL"
"""The environment variable that forbids all above a level; `velogan/__init__.py` tells torch and oneDNN so."""

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
class Level:
    """A set of instructions, for which `libraries` are compiled."""

    needs: frozenset[str]
    """What /proc/cpuinfo calls them."""
    options: str
    libraries: tuple[str, ...] = ("norms", "fp32_gemm")


LEVELS: dict[str, Level] = {
    "avx512-bf16": Level(
        frozenset(f"{_V4} avx512_bf16".split()),
        "-march=x86-64-v4 -mavx512bf16",
        ("norms", "fp32_gemm", "winograd"),
    ),
    "x86-64-v4": Level(frozenset(_V4.split()), "-march=x86-64-v4"),
    "x86-64-v3": Level(frozenset(_V3.split()), "-march=x86-64-v3"),
}
"""The best first."""


def usable() -> list[str]:
    """The levels that this CPU has and the setting allows, the best first.

    ValueError where the setting is no level, or one that this CPU has not.
    """
    has = frozenset(cpu_flags().split())
    here = [name for name, level in LEVELS.items() if level.needs <= has]
    most = os.environ.get(SETTING)
    if most and most not in here:
        raise ValueError(
            f"{SETTING}={most!r:.40} is no level of this CPU, which has {', '.join(here) or 'none'}: take one of "
            "these, or leave it out"
        )
    return here[here.index(most) :] if most else here


def built(name: str) -> list[Path]:
    """Files of the library `name` that came with the wheel and run here, the best first."""
    files = [HERE / "built" / f"{name}-{level}.so" for level in usable()]
    return [file for file in files if file.exists()]


def command(compiler: str, name: str, *, level: str | None) -> list[str]:
    """What compiles the library `name` for a level, or for this machine alone; `-o` and a file are to follow."""
    machine = "-march=native" if level is None else LEVELS[level].options
    return [compiler, *_OPTIONS.split(), *machine.split(), *(str(HERE / source) for source in LIBRARIES[name])]


def build_all(compiler: str, folder: Path) -> list[Path]:
    """Compiles all libraries for all levels into `folder`, for a wheel."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for level, one in LEVELS.items():
        for name in one.libraries:
            made.append(folder / f"{name}-{level}.so")
            subprocess.run([*command(compiler, name, level=level), "-s", "-o", str(made[-1])], check=True)
    return made


def cpu_flags() -> str:
    """The instructions of this CPU, as /proc/cpuinfo has them; nothing where there is none, or on another machine."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    line = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return line.partition(":")[2].strip() if platform.machine() in ("x86_64", "AMD64", "aarch64") else ""
