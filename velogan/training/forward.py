"""Faster equivalents of networks, which share their weights, selected by the engine settings."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import torch
from torch import nn

from velogan.data.sets.sources import code_directory
from velogan.engine.compiled import compile_network
from velogan.engine.config import EngineConfig
from velogan.kernels.bf16_gemm import load_bf16_gemm
from velogan.kernels.fp32_gemm import load_fp32_gemm
from velogan.kernels.fused import NativeGemm, to_native
from velogan.kernels.gpu import load_gpu_kernels
from velogan.kernels.native import load_kernels
from velogan.kernels.norms import NormKernels
from velogan.kernels.plan import PlannedNetwork, plain_plan, tokens
from velogan.types import Composed, Nets


def load_norm_kernels(device: torch.device) -> NormKernels | str:
    """Return the native norm kernels for `device`, or the reason why they are not available."""
    if device.type == "cuda":
        return load_gpu_kernels(device, code_directory() / "kernels")
    if device.type != "cpu":
        return "the native kernels are for CPUs and CUDA"
    kernels = load_kernels(code_directory() / "kernels")
    return kernels or "they could not be built or loaded: install g++, and let VELOGAN_CACHE allow execution"


def load_gemm(precision: str) -> NativeGemm | None:
    """Return native convolutions, in bfloat16 for "bf16", else in float32; None if they cannot be built or run here."""
    load = load_bf16_gemm if precision == "bf16" else load_fp32_gemm
    return load(code_directory() / "kernels")


def build_forward_net(net: nn.Module, engine: EngineConfig) -> nn.Module:
    """Return `net` itself or a faster equivalent; see `build_forward_nets`."""
    return build_forward_nets({"net": net}, engine)["net"]


def build_forward_nets(nets: Nets, engine: EngineConfig, *, recomputed: Collection[str] = ()) -> dict[str, nn.Module]:
    """Return the networks that the losses call: `nets` themselves, or faster equivalents that share their weights.

    recomputed: roles of the networks whose activations are recomputed in the backward pass instead of stored

    Raises ValueError if the configured kernels are not available on this machine.
    """
    accelerate: Callable[..., nn.Module] | None = None
    if engine.kernels in ("native", "winograd"):
        kernels = load_norm_kernels(torch.device(engine.device))
        gemm = load_gemm(engine.precision) if engine.kernels == "winograd" else None
        if isinstance(kernels, str):
            raise ValueError(f"engine.kernels={engine.kernels} cannot be used: {kernels}; or set engine.kernels=plain")
        if gemm is None and engine.kernels == "winograd":
            raise ValueError("engine.kernels=winograd: this CPU cannot run it, set engine.kernels=native")
        accelerate = partial(to_native, kernels=kernels, gemm=gemm)
    elif engine.compile == "on":
        accelerate = partial(compile_network, cache=code_directory() / "compiled")
    forward = {name: net if accelerate is None else _replace(net, accelerate) for name, net in nets.items()}
    checkpointed = partial(accelerate or _build_planned, recompute=True)
    return forward | {name: _replace(nets[name], checkpointed) for name in recomputed}


def _build_planned(net: nn.Module, *, recompute: bool) -> nn.Module:
    return PlannedNetwork(net, plain_plan(tokens(net)), recompute=recompute)


def _replace(net: nn.Module, accelerate: Callable[[nn.Module], nn.Module]) -> nn.Module:
    return net.map_parts(accelerate) if isinstance(net, Composed) else accelerate(net)
