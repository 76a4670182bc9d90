from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from velogan.kernels.bf16_gemm import Bf16Gemm, load_bf16_gemm


@pytest.fixture(
    scope="session",
    params=[
        pytest.param("cuda", marks=pytest.mark.gpu),
        pytest.param("cpu", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="they run on the GPU here")),
    ],
)
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where Triton's kernels run: a GPU, or in Triton's interpreter where there is none (TRITON_INTERPRET)."""
    pytest.importorskip(
        "triton", reason="Triton is not installed: it comes with torch for CUDA, and with the extra dev"
    )
    return torch.device(request.param)


@pytest.fixture(scope="session")
def gemm() -> Bf16Gemm:
    made = load_bf16_gemm(Path(os.environ["VELOGAN_CACHE"]) / "kernels")
    if made is None:
        pytest.skip("there is no g++ to build the native convolutions, or no bfloat16 in this CPU's AVX-512")
    return made
