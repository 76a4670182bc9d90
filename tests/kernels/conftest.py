from __future__ import annotations

import os
from pathlib import Path

import pytest

from velogan.kernels.bf16_gemm import Bf16Gemm, load_bf16_gemm


@pytest.fixture(scope="session")
def gemm() -> Bf16Gemm:
    made = load_bf16_gemm(Path(os.environ["VELOGAN_CACHE"]) / "kernels")
    if made is None:
        pytest.skip("there is no g++ to build the native convolutions, or no bfloat16 in this CPU's AVX-512")
    return made
