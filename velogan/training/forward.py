"""Networks as the engine's choices compute them: faster equivalents over the same weights."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import torch
from torch import nn

from velogan.data.sets.sources import code_directory
from velogan.engine.compiled import compiled
from velogan.engine.config import EngineConfig
from velogan.kernels.bf16_gemm import load_bf16_gemm
from velogan.kernels.fp32_gemm import load_fp32_gemm
from velogan.kernels.fused import Products, native
from velogan.kernels.gpu import load_gpu_kernels
from velogan.kernels.native import load_kernels
from velogan.kernels.norms import NormKernels
from velogan.kernels.plan import Planned, plain_plan, tokens
from velogan.types import Composed, Nets


def norm_kernels(device: torch.device) -> NormKernels | str:
    """Return the native norm kernels for `device`, or why there are none."""
    if device.type == "cuda":
        return load_gpu_kernels(device, code_directory() / "kernels")
    if device.type != "cpu":
        return "the native kernels are for CPUs and CUDA"
    made = load_kernels(code_directory() / "kernels")
    return "they could not be built: install g++ for about twice the speed" if made is None else made


def products(precision: str) -> Products | None:
    """The native convolutions in a precision of `EngineConfig`; None where they cannot be built or do not run here."""
    load = load_bf16_gemm if precision == "bf16" else load_fp32_gemm
    return load(code_directory() / "kernels")


def forward_net(net: nn.Module, engine: EngineConfig) -> nn.Module:
    """Return one network as `forward_nets` does."""
    return forward_nets({"net": net}, engine)["net"]


def forward_nets(nets: Nets, engine: EngineConfig, *, recomputed: Collection[str] = ()) -> dict[str, nn.Module]:
    """What the losses call: the networks themselves, or faster equivalents over the same weights.

    Activations of those whose names are in `recomputed` are computed again in the backward pass, and not kept for it.
    """
    fast: Callable[..., nn.Module] | None = None
    if engine.kernels in ("native", "winograd"):
        kernels = norm_kernels(torch.device(engine.device))
        gemm = products(engine.precision) if engine.kernels == "winograd" else None
        if isinstance(kernels, str):
            raise ValueError(f"engine.kernels={engine.kernels} cannot be used: {kernels}; or set engine.kernels=plain")
        if gemm is None and engine.kernels == "winograd":
            raise ValueError("engine.kernels=winograd: this CPU cannot run it, set engine.kernels=native")
        fast = partial(native, kernels=kernels, gemm=gemm)
    elif engine.compile == "on":
        fast = partial(compiled, cache=code_directory() / "compiled")
    made = {name: net if fast is None else _faster(net, fast) for name, net in nets.items()}
    lean = partial(fast or _planned, recompute=True)
    return made | {name: _faster(nets[name], lean) for name in recomputed}


def _planned(net: nn.Module, *, recompute: bool) -> nn.Module:
    return Planned(net, plain_plan(tokens(net)), recompute=recompute)


def _faster(net: nn.Module, fast: Callable[[nn.Module], nn.Module]) -> nn.Module:
    return net.map_parts(fast) if isinstance(net, Composed) else fast(net)
