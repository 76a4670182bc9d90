from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import pytest
import torch

from velogan.kernels.bf16_gemm import Bf16Gemm, load_bf16_gemm
from velogan.kernels.norms import NormKernels

TRITON_DEVICES = [
    pytest.param("cuda", marks=pytest.mark.gpu),
    pytest.param("cpu", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="they run on the GPU here")),
]


@pytest.fixture(scope="session", params=TRITON_DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device of Triton's kernels: a GPU, or else the CPU, in Triton's interpreter (TRITON_INTERPRET)."""
    pytest.importorskip(
        "triton", reason="Triton is not installed: it comes with torch for CUDA, and with the extra dev"
    )
    return torch.device(request.param)


@pytest.fixture(scope="session")
def triton_norms(device: torch.device) -> NormKernels:
    return import_module("velogan.kernels.triton_norms").TritonNorms()


@pytest.fixture(scope="session")
def gemm() -> Bf16Gemm:
    gemm = load_bf16_gemm(Path(os.environ["VELOGAN_CACHE"]) / "kernels")
    if gemm is None:
        pytest.skip("there is no g++ to build the native convolutions, or no bfloat16 in this CPU's AVX-512")
    return gemm
