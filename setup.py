"""What pyproject.toml cannot say: a Linux wheel carries the native kernels compiled (velogan/kernels/isa.py).

Where there is no g++, and in an editable install, they are left out, and compiled at first use by those who have one.
"""

import os
import platform
import shutil
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent))

from velogan.kernels.isa import build_all

COMPILER = os.environ.get("CXX") or shutil.which("g++")
NATIVE = sys.platform == "linux" and platform.machine() == "x86_64" and COMPILER is not None


class BuildKernels(build_py):
    """Python files, and beside them the libraries."""

    def run(self):
        super().run()
        if NATIVE and not self.editable_mode:
            build_all(COMPILER, Path(self.build_lib) / "velogan" / "kernels" / "built")


class Wheel(bdist_wheel):
    """For this platform, where there are libraries, and for any Python: they know nothing of it."""

    def get_tag(self):
        _, _, system = super().get_tag()
        return "py3", "none", system


class Native(Distribution):
    """Not only Python, where there are libraries."""

    def has_ext_modules(self):
        return NATIVE


setup(cmdclass={"build_py": BuildKernels, "bdist_wheel": Wheel}, distclass=Native)
