"""Load the kernels for GPUs, after a check on a small image."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from velogan.files import create_private_folder
from velogan.kernels.norms import NormKernels


@cache
def load_gpu_kernels(device: torch.device, cache: Path) -> NormKernels | str:
    """Return the Triton kernels, or the reason why they cannot be used on `device`: not installed, failing or inexact.

    Compiled kernels are cached in `cache` for later processes, or in TRITON_CACHE_DIR if that is set. Raises ValueError
    if other users may write to `cache`: see `files.create_private_folder`.
    """
    if find_spec("triton") is None:
        return "Triton is not installed"
    if "TRITON_CACHE_DIR" not in os.environ:
        os.environ["TRITON_CACHE_DIR"] = str(create_private_folder(cache) / "triton")
    try:
        from velogan.kernels.triton_norms import TritonNorms

        kernels = TritonNorms()
        return _find_mismatch(kernels, device) or kernels
    except Exception as error:  # of any type: from the compiler, the driver or the launch
        first = next(iter(str(error).splitlines()), "")
        return f"Triton's kernels do not run here: {type(error).__name__}: {first:.150}"


def _find_mismatch(kernels: NormKernels, device: torch.device) -> str:
    """Return a description of the first mismatch with the plain layers, forward or backward; empty if they agree."""
    random = torch.Generator().manual_seed(0)
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.04)):
        x, grad = (
            torch.randn(1, 20, *sides, generator=random).to(device, dtype).contiguous(memory_format=torch.channels_last)
            for sides in ((6, 7), (8, 9))
        )
        for fused, plain, *inputs in (
            (lambda x: kernels.norm(x, slope=0.2, pad=1), lambda x: F.leaky_relu(F.instance_norm(x), 0.2), x),
            (lambda x, y: kernels.norm(x, residual=y, pad=1), lambda x, y: F.instance_norm(x) + y, x, x),
            (lambda x: kernels.epilogue(x, slope=0.0, pad=1), F.relu, x),
        ):
            actual = _results(lambda *args, f=fused: f(*args)[0], inputs, grad)
            expected = _results(lambda *args, f=plain: F.pad(f(*args), (1,) * 4, mode="reflect"), inputs, grad)
            if not all(torch.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in zip(actual, expected)):
                return f"Triton's kernels and the plain layers differ here, in {dtype}"
    return ""


def _results(compute: Callable[..., Tensor], inputs: list[Tensor], grad: Tensor) -> list[Tensor]:
    """Return the output and the gradients of `inputs`, in float32; `grad`: the gradient of the output."""
    with torch.enable_grad():
        leaves = [value.detach().clone().requires_grad_() for value in inputs]
        out = compute(*leaves)
        gradients = torch.autograd.grad(out, leaves, grad)
    return [value.detach().float() for value in (out, *gradients)]
