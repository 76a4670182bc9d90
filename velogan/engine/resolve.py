"""Turns `auto` into decisions, each with its reason: printed, recorded, and the same on resume."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from velogan.engine.config import EngineConfig
from velogan.engine.native import NormKernels

COMPILE_PAYS_AFTER_S = 1200.0
"""Length of a run in seconds from which two to three minutes of compilation are earned back."""

REFERENCE = {
    "precision": "fp32",
    "layout": "contiguous",
    "batched": "off",
    "fused_optimizer": "off",
    "kernels": "plain",
    "compile": "off",
}


@dataclass(frozen=True)
class Pick:
    """One decision: what was asked, what was chosen, and why."""

    what: str
    choice: str
    why: str


def resolve_device(asked: str) -> torch.device:
    """The device for `asked`; `auto` takes an accelerator where there is one. ValueError where it is missing."""
    if asked == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(asked)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"engine.device={asked} cannot be used here ({str(error).splitlines()[0]}): choose auto"
        ) from error
    return device


def resolve(
    config: EngineConfig,
    *,
    load_kernels: Callable[[], NormKernels | None],
    norms: set[str],
    second_derivatives: bool,
    run_seconds: float | None,
) -> tuple[EngineConfig, list[Pick]]:
    """`config` with every `auto` decided, and the reasons.

    `norms` are the kinds of norm in the networks; `second_derivatives` is whether the loss needs them (wgangp);
    `run_seconds` is how long the run is asked to be, where that is known.
    """
    device = resolve_device(config.device)
    picks = [Pick("device", str(device), "asked for" if config.device != "auto" else "the fastest found")]
    chosen: dict[str, object] = {"device": str(device), "threads": config.threads or default_threads()}
    if config.mode == "reference":
        picks.append(Pick("mode", "reference", "asked for: float32, eager, one pass per image, plain Adam"))
        return config.model_copy(update=chosen | REFERENCE), picks
    rules = {
        "precision": lambda: precision_for(device),
        "layout": lambda: _layout(device),
        "batched": lambda: _batched(norms),
        "fused_optimizer": lambda: _fused_optimizer(device),
        "kernels": lambda: _kernels(device, norms, load_kernels),
        "compile": lambda: _compile(
            device, native=chosen["kernels"] == "native", second=second_derivatives, seconds=run_seconds
        ),
    }
    for what, rule in rules.items():
        asked = getattr(config, what)
        choice, why = rule() if asked == "auto" else (asked, "asked for")
        chosen[what] = choice
        picks.append(Pick(what, choice, why))
    _refuse(chosen, norms=norms, second=second_derivatives)
    return config.model_copy(update=chosen), picks


def default_threads() -> int:
    """As many as this process may use cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def precision_for(device: torch.device) -> tuple[str, str]:
    """fp32 or bf16 for `device`, whichever computes convolutions faster, and why."""
    if device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
        return ("bf16", "this GPU computes it natively") if fast else ("fp32", "this GPU has no bf16")
    if device.type != "cpu":
        return "fp32", f"bf16 is not tried on {device.type}"
    gain = bf16_gain()
    return ("bf16" if gain > 1.2 else "fp32"), f"a convolution in bf16 measured {gain:.1f}x float32 on this CPU"


def bf16_gain() -> float:
    """How many times faster a residual block's convolution is in bf16, forward and backward; 0.2 s to measure.

    On one thread, the types taking turns and the fastest of each counting, so that a busy machine does not decide.
    """
    seconds = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for dtype in 10 * list(seconds):
        x = torch.ones(1, 128, 34, 34, dtype=dtype).to(memory_format=torch.channels_last).requires_grad_()
        weight = torch.ones(128, 128, 3, 3, dtype=dtype, requires_grad=True)
        start = time.perf_counter()
        F.conv2d(x, weight).sum().backward()
        seconds[dtype] = min(seconds[dtype], time.perf_counter() - start)
    torch.set_num_threads(threads)
    return seconds[torch.float32] / seconds[torch.bfloat16]


def _layout(device: torch.device) -> tuple[str, str]:
    if device.type == "mps":
        return "contiguous", "the layout its kernels are made for"
    return "channels_last", "the layout its convolutions are fastest in"


def _batched(norms: set[str]) -> tuple[str, str]:
    if norms & {"batch", "sync_batch"}:
        return "off", "batch norm sees a batch, so passes must stay apart"
    return "on", "exact, since norms are per sample"


def _fused_optimizer(device: torch.device) -> tuple[str, str]:
    return "on", f"one kernel per step on {device.type}"


def _kernels(device: torch.device, norms: set[str], load_kernels: Callable[[], NormKernels | None]) -> tuple[str, str]:
    if device.type != "cpu":
        return "plain", "the native kernels are for CPUs"
    if "instance" not in norms:
        return "plain", "the native kernels are for instance norm"
    if load_kernels() is None:
        return "plain", "they could not be built: install g++ for about twice the speed"
    return "native", "norm, activation, residual and padding in two passes over memory"


def _compile(device: torch.device, *, native: bool, second: bool, seconds: float | None) -> tuple[str, str]:
    if second:
        return "off", "the gradient penalty needs second derivatives"
    if native:
        return "off", "the native kernels are faster and start at once"
    if device.type != "cuda":
        return "off", f"not worth its start-up on {device.type}"
    if seconds is not None and seconds < COMPILE_PAYS_AFTER_S:
        return "off", f"the run is shorter than {COMPILE_PAYS_AFTER_S / 60:.0f} minutes"
    return "on", "the run is long enough to earn back minutes of compilation"


def _refuse(chosen: dict[str, object], *, norms: set[str], second: bool) -> None:
    if chosen["batched"] == "on" and norms & {"batch", "sync_batch"}:
        raise ValueError(
            "engine.batched=on changes the mathematics of batch norm: set engine.batched=off, or norm=instance"
        )
    if chosen["compile"] == "on" and second:
        raise ValueError("engine.compile=on cannot compute wgangp's gradient penalty: set engine.compile=off")
