"""Turn `auto` into decisions, each with its reason: printed, recorded, and the same on resume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from velogan.engine.compiled import compiler_missing
from velogan.engine.config import EngineConfig
from velogan.engine.device import device_for
from velogan.engine.optimizers import FUSED
from velogan.engine.processes import default_threads
from velogan.kernels.norms import NormKernels
from velogan.kernels.precision import precision_for
from velogan.types import Decision

COMPILE_PAYS_AFTER_S = 1200.0
"""A run of so many seconds saves more time than the two to three minutes that compilation takes."""

MODES: dict[str, dict[str, str]] = {
    "auto": {},
    "reference": {"precision": "fp32", "kernels": "plain", "checkpoint_activations": "off", "compile": "off"},
    "eager": {"kernels": "plain", "compile": "off"},
    "graph": {},
    "streams": {},
}
"""What each mode sets for a field that is `auto`."""

RUNNING = {"batch", "sync_batch"}
"""Norms with running statistics of batches."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What the choices depend on besides the machine.

    `norms` are the kinds of norm in the networks, `optimizers` those of optimizers. `seconds` is the length of the run,
    if known. `one_size`: all images have one size. `dropout`: networks draw random
    numbers. `processes` train together.
    """

    norms: set[str]
    optimizers: set[str]
    seconds: float | None
    one_size: bool
    dropout: bool
    processes: int = 1


CONFLICTS: tuple[tuple[Callable[[EngineConfig, Needs], object], str], ...] = (
    (
        lambda engine, needs: engine.kernels == "winograd" and _type(engine) != "cpu",
        "engine.kernels=winograd is for CPUs: set engine.kernels=native, or plain",
    ),
    (
        lambda engine, needs: engine.kernels == "native" and _type(engine) not in ("cpu", "cuda"),
        "engine.kernels=native is for CPUs and CUDA: set engine.kernels=plain",
    ),
    (
        lambda engine, needs: engine.kernels in ("native", "winograd") and engine.precision == "fp16",
        "engine.kernels={kernels} has no float16: set engine.precision=bf16, or engine.kernels=plain",
    ),
    (
        lambda engine, needs: engine.kernels == "native" and engine.compile == "on" and _type(engine) == "cuda",
        "engine.kernels=native and engine.compile=on write the same kernels: set one of them",
    ),
    (
        lambda engine, needs: engine.compile == "on" and compiler_missing(torch.device(engine.device)),
        "engine.compile=on needs a C++ compiler, and Triton on CUDA: install these, or set engine.compile=off",
    ),
    (
        lambda engine, needs: engine.compile == "on" and engine.checkpoint_activations == "on",
        "engine.compile=on and engine.checkpoint_activations=on both choose the activations that are kept: set one off",
    ),
    (
        lambda engine, needs: engine.checkpoint_activations == "on" and needs.norms & RUNNING,
        "engine.checkpoint_activations=on counts each batch twice in batch norm: set it off, or norm=instance",
    ),
    (
        lambda engine, needs: engine.captures and needs.processes > 1,
        "engine.mode={mode} captures no exchange between several processes: set engine.mode=eager",
    ),
    (
        lambda engine, needs: engine.captures and needs.optimizers.difference(FUSED),
        f"engine.mode={{mode}} needs fused optimizers: set engine.mode=eager, or one of {', '.join(FUSED)}",
    ),
    (
        lambda engine, needs: engine.captures and not needs.one_size,
        "engine.mode={mode} needs images of one size: set engine.mode=eager, or a data.preprocess that crops",
    ),
    (
        lambda engine, needs: engine.captures and engine.checkpoint_activations == "on" and needs.dropout,
        "engine.mode={mode} cannot draw dropout's random numbers again for engine.checkpoint_activations=on: set "
        "engine.mode=eager, or generator.dropout=false",
    ),
    (
        lambda engine, needs: engine.mode == "streams" and needs.norms & RUNNING,
        "engine.mode=streams changes the order of batches for batch norm: set engine.mode=auto, or norm=instance",
    ),
    (
        lambda engine, needs: engine.mode == "reference" and not MODES["reference"].items() <= dict(engine).items(),
        "engine.mode=reference computes in float32 with plain layers: leave the other settings of the engine out",
    ),
    (
        lambda engine, needs: needs.processes > 1 and _type(engine) == "mps",
        "engine.device=mps is for one process: set engine.device=cpu",
    ),
    (
        lambda engine, needs: needs.processes > 1 and "sync_batch" in needs.norms and _type(engine) == "cpu",
        "norm=sync_batch shares statistics between GPUs, not on engine.device=cpu: set norm=batch",
    ),
)
"""Settings that are not possible: when, and what is wrong with them."""


def resolve(
    config: EngineConfig,
    needs: Needs,
    *,
    load_kernels: Callable[[torch.device], NormKernels | str],
    gemm_gain: Callable[[str], float],
) -> tuple[EngineConfig, list[Decision]]:
    """Return `config` with every `auto` decided, and the reasons. Raises ValueError for settings of `CONFLICTS`.

    `load_kernels` gives the native kernels for a device, or says why there are none. `gemm_gain` measures how many
    times faster native convolutions of a precision are than the library's; 0 if there are none.
    """
    device = device_for(config)
    engine = config.model_copy(update={"device": str(device), "threads": config.threads or default_threads()})
    decisions = [Decision("device", str(device), "asked for" if config.device != "auto" else "the fastest found")]
    # each sees the choices before it; the last word is taken instead of a choice that is not possible
    rules: dict[str, tuple[Callable[[], tuple[str, str]], str]] = {
        "precision": (lambda: precision_for(device), "fp32"),
        "kernels": (lambda: _kernels(engine, needs, load_kernels, gemm_gain), "plain"),
        "checkpoint_activations": (lambda: ("off", "only where asked for: it takes time"), "off"),
        "compile": (lambda: _compile(engine, needs), "off"),
        "mode": (lambda: _mode(device), "eager"),
    }
    for name, (rule, otherwise) in rules.items():
        if getattr(config, name) != "auto":
            choice, why = getattr(config, name), "asked for"
        elif name in MODES[config.mode]:
            choice, why = MODES[config.mode][name], f"engine.mode={config.mode}"
        else:
            choice, why = rule()
            if problem := conflict(engine.model_copy(update={name: choice}), needs):
                choice, why = otherwise, problem
        engine = engine.model_copy(update={name: choice})
        decisions.append(Decision(name, choice, why))
    if problem := conflict(engine, needs):
        raise ValueError(problem)
    return engine, decisions


def conflict(engine: EngineConfig, needs: Needs) -> str:
    """Return what is wrong with the settings by the first row of `CONFLICTS` that applies; empty if none does."""
    return next((message.format_map(dict(engine)) for when, message in CONFLICTS if when(engine, needs)), "")


def _type(engine: EngineConfig) -> str:
    return torch.device(engine.device).type


def _kernels(
    engine: EngineConfig,
    needs: Needs,
    load_kernels: Callable[[torch.device], NormKernels | str],
    gemm_gain: Callable[[str], float],
) -> tuple[str, str]:
    device = torch.device(engine.device)
    if device.type == "cuda":
        return "plain", "no record on a GPU shows the Triton kernels faster; engine.kernels=native selects them"
    if not needs.norms & {"instance", "none"}:
        return "plain", "the native kernels are for instance norm, or none"
    if isinstance(found := load_kernels(device), str):
        return "plain", found
    gain = gemm_gain(engine.precision)
    if gain > 1.1:
        return (
            "winograd",
            f"native {engine.precision} convolutions measured {gain:.1f}x as fast as the library's, both passes",
        )
    return "native", "norm, activation, residual and padding in two passes over memory"


def _compile(engine: EngineConfig, needs: Needs) -> tuple[str, str]:
    if _type(engine) != "cuda":
        return "off", f"its start-up takes more time than it saves on {engine.device}"
    if needs.seconds is not None and needs.seconds < COMPILE_PAYS_AFTER_S:
        return "off", f"the run is shorter than {COMPILE_PAYS_AFTER_S / 60:.0f} minutes"
    if engine.kernels == "native":
        return "off", "engine.kernels=native takes its place"
    return "on", "the run is long enough to gain more than compilation takes"


def _mode(device: torch.device) -> tuple[str, str]:
    if device.type != "cuda":
        return "eager", "only a CUDA step can be captured"
    return "graph", "the host launches a step at once, so that the device does not wait for it"
