"""Rules that resolve the engine's `auto` fields, and incompatible settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from velogan.engine.compiled import find_missing_compiler
from velogan.engine.config import EngineConfig
from velogan.engine.device import select_device
from velogan.engine.optimizers import FUSED
from velogan.engine.processes import available_cores
from velogan.kernels.norms import NormKernels
from velogan.kernels.precision import precision_for
from velogan.types import Decision

COMPILE_PAYS_AFTER_S = 1200.0
"""Seconds of training after which compiled steps have saved the two to three minutes of compilation."""

MODES: dict[str, dict[str, str]] = {
    "auto": {},
    "reference": {"precision": "fp32", "kernels": "plain", "checkpoint_activations": "off", "compile": "off"},
    "eager": {"kernels": "plain", "compile": "off"},
    "graph": {},
    "streams": {},
}
"""The values that each mode sets for fields that are `auto`."""

BATCH_NORMS = {"batch", "sync_batch"}
"""Norms whose statistics are computed over the batch."""


@dataclass(frozen=True, kw_only=True)
class RunProperties:
    """The properties of a run that its engine settings depend on.

    norms, optimizers: the kinds of norms and optimizers in use
    seconds: length of the run if it is set in minutes; else None
    has_one_size: whether all images have the same size
    has_dropout: whether a generator has dropout
    processes: number of processes that train together
    """

    norms: set[str]
    optimizers: set[str]
    seconds: float | None
    has_one_size: bool
    has_dropout: bool
    processes: int = 1


CONFLICTS: tuple[tuple[Callable[[EngineConfig, RunProperties], object], str], ...] = (
    (
        lambda engine, run: engine.kernels == "winograd" and _device_type(engine) != "cpu",
        "engine.kernels=winograd is for CPUs: set engine.kernels=native, or plain",
    ),
    (
        lambda engine, run: engine.kernels == "native" and _device_type(engine) not in ("cpu", "cuda"),
        "engine.kernels=native is for CPUs and CUDA: set engine.kernels=plain",
    ),
    (
        lambda engine, run: engine.kernels in ("native", "winograd") and engine.precision == "fp16",
        "engine.kernels={kernels} has no float16: set engine.precision=bf16, or engine.kernels=plain",
    ),
    (
        lambda engine, run: engine.kernels == "native" and engine.compile == "on" and _device_type(engine) == "cuda",
        "engine.kernels=native and engine.compile=on generate the same kernels: set only one of them",
    ),
    (
        lambda engine, run: engine.compile == "on" and find_missing_compiler(torch.device(engine.device)),
        "engine.compile=on needs a C++ compiler, and Triton on CUDA: install these, or set engine.compile=off",
    ),
    (
        lambda engine, run: engine.compile == "on" and engine.checkpoint_activations == "on",
        "engine.compile=on and engine.checkpoint_activations=on both choose which activations to keep: set one off",
    ),
    (
        lambda engine, run: engine.checkpoint_activations == "on" and run.norms & BATCH_NORMS,
        "engine.checkpoint_activations=on counts each batch twice in batch norm: set it off, or norm=instance",
    ),
    (
        lambda engine, run: engine.captures and run.processes > 1,
        "engine.mode={mode} cannot capture communication between processes: set engine.mode=eager",
    ),
    (
        lambda engine, run: engine.captures and run.optimizers.difference(FUSED),
        f"engine.mode={{mode}} needs fused optimizers: set engine.mode=eager, or one of {', '.join(FUSED)}",
    ),
    (
        lambda engine, run: engine.captures and not run.has_one_size,
        "engine.mode={mode} needs images of one size: set engine.mode=eager, or a data.preprocess that crops",
    ),
    (
        lambda engine, run: engine.captures and engine.checkpoint_activations == "on" and run.has_dropout,
        "engine.mode={mode} cannot draw dropout's random numbers again for engine.checkpoint_activations=on: set "
        "engine.mode=eager, or generator.dropout=false",
    ),
    (
        lambda engine, run: engine.mode == "streams" and run.norms & BATCH_NORMS,
        "engine.mode=streams changes the order of batches for batch norm: set engine.mode=auto, or norm=instance",
    ),
    (
        lambda engine, run: engine.mode == "reference" and not MODES["reference"].items() <= dict(engine).items(),
        "engine.mode=reference computes in float32 with plain layers: remove the other engine settings",
    ),
    (
        lambda engine, run: run.processes > 1 and _device_type(engine) == "mps",
        "engine.device=mps is for one process: set engine.device=cpu",
    ),
    (
        lambda engine, run: run.processes > 1 and "sync_batch" in run.norms and _device_type(engine) == "cpu",
        "norm=sync_batch shares statistics between GPUs, not on engine.device=cpu: set norm=batch",
    ),
)
"""Incompatible settings: (condition, message that says what to change)."""


def resolve_auto(
    config: EngineConfig,
    run: RunProperties,
    *,
    load_kernels: Callable[[torch.device], NormKernels | str],
    measure_gemm_speedup: Callable[[str], float],
) -> tuple[EngineConfig, list[Decision]]:
    """Return `config` with every `auto` resolved, and the decisions. Raises ValueError if requested settings conflict.

    load_kernels: returns the native kernels for a device, or the reason why they are not available
    measure_gemm_speedup: measures how fast native convolutions of a precision are relative to PyTorch's; 0: none fits
    """
    device = select_device(config)
    engine = config.model_copy(update={"device": str(device), "threads": config.threads or len(available_cores())})
    decisions = [Decision("device", str(device), "requested" if config.device != "auto" else "the fastest available")]
    # a rule sees the fields resolved before it; the second entry is the fallback if the rule's value conflicts
    rules: dict[str, tuple[Callable[[], tuple[str, str]], str]] = {
        "precision": (lambda: precision_for(device), "fp32"),
        "kernels": (lambda: _choose_kernels(engine, run, load_kernels, measure_gemm_speedup), "plain"),
        "checkpoint_activations": (lambda: ("off", "only on request: it takes time"), "off"),
        "compile": (lambda: _choose_compile(engine, run), "off"),
        "mode": (lambda: _choose_mode(device), "eager"),
    }
    for name, (rule, fallback) in rules.items():
        if getattr(config, name) != "auto":
            value, reason = getattr(config, name), "requested"
        elif name in MODES[config.mode]:
            value, reason = MODES[config.mode][name], f"engine.mode={config.mode}"
        else:
            value, reason = rule()
            if problem := find_conflict(engine.model_copy(update={name: value}), run):
                value, reason = fallback, problem
        engine = engine.model_copy(update={name: value})
        decisions.append(Decision(name, value, reason))
    if problem := find_conflict(engine, run):
        raise ValueError(problem)
    return engine, decisions


def find_conflict(engine: EngineConfig, run: RunProperties) -> str:
    """Return the message of the first entry of `CONFLICTS` whose condition holds; empty if none does."""
    return next((message.format_map(dict(engine)) for applies, message in CONFLICTS if applies(engine, run)), "")


def _device_type(engine: EngineConfig) -> str:
    return torch.device(engine.device).type


def _choose_kernels(
    engine: EngineConfig,
    run: RunProperties,
    load_kernels: Callable[[torch.device], NormKernels | str],
    measure_gemm_speedup: Callable[[str], float],
) -> tuple[str, str]:
    device = torch.device(engine.device)
    if device.type == "cuda":
        return "plain", "no record on a GPU shows the Triton kernels faster; engine.kernels=native selects them"
    if not run.norms & {"instance", "none"}:
        return "plain", "the native kernels are for instance norm, or none"
    if isinstance(kernels := load_kernels(device), str):
        return "plain", kernels
    speedup = measure_gemm_speedup(engine.precision)
    if speedup > 1.1:
        return (
            "winograd",
            f"native {engine.precision} convolutions measured {speedup:.1f}x as fast as PyTorch's, both passes",
        )
    return "native", "norm, activation, residual and padding in two passes over memory"


def _choose_compile(engine: EngineConfig, run: RunProperties) -> tuple[str, str]:
    if _device_type(engine) != "cuda":
        return "off", f"its start-up takes more time than it saves on {engine.device}"
    if run.seconds is not None and run.seconds < COMPILE_PAYS_AFTER_S:
        return "off", f"the run is shorter than {COMPILE_PAYS_AFTER_S / 60:.0f} minutes"
    if engine.kernels == "native":
        return "off", "engine.kernels=native replaces it"
    return "on", "the run is long enough to gain more than compilation takes"


def _choose_mode(device: torch.device) -> tuple[str, str]:
    if device.type != "cuda":
        return "eager", "only a CUDA step can be captured"
    return "graph", "the host launches a whole step at once, so that the device does not wait for it"
