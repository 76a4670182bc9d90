"""What a wheel and a source distribution hold, against the tree. A stand-in compiles: it is about files alone."""

from __future__ import annotations

import os
import platform
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from velogan.kernels.isa import ISA_LEVELS

ROOT = Path(__file__).parents[1]
LIBRARIES = {
    f"velogan/kernels/built/{name}-{level}.so"
    for level, isa_level in ISA_LEVELS.items()
    for name in isa_level.libraries
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the tree, since a build leaves files in it."""
    copy = tmp_path / "source"
    for folder in ("velogan", "docs"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


def _build(kind: str, source: Path, compiler: str) -> Path:
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}('dist'))"
    env = os.environ | {"CXX": compiler, "PYTHONPATH": ""}
    done = subprocess.run([sys.executable, "-c", code], cwd=source, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return source / "dist" / done.stdout.splitlines()[-1]


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in (folder / "velogan").rglob("*") if path.is_file()}


@pytest.mark.skipif((sys.platform, platform.machine()) != ("linux", "x86_64"), reason="other wheels have no libraries")
def test_a_wheel_holds_the_package_and_its_libraries(source: Path, tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho "$2" > "$2"\n')
    compiler.chmod(0o700)
    tree = _files(source)
    assert "velogan/kernels/norms.cpp" in tree
    wheel = _build("wheel", source, str(compiler))
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == tree | LIBRARIES


def test_a_source_distribution_holds_what_builds_a_wheel(source: Path) -> None:
    tree = _files(source)
    with tarfile.open(_build("sdist", source, "")) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert tree | {"setup.py", "docs/howto.md", "LICENSE"} <= held
    assert not [name for name in held if name.endswith(".so")]


def test_every_extra_has_a_command_that_shows_what_it_is_for() -> None:
    """Which `make extras` runs."""
    commands = runpy.run_path(str(ROOT / "tests" / "extras.py"))["RUNS"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*commands} == {"", *extras} - {"dev"}
