"""Turns `auto` into decisions, each with its reason: printed, recorded, and the same on resume."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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

REFERENCE = {
    "precision": "fp32",
    "batched": "off",
    "kernels": "plain",
    "checkpoint_activations": "off",
    "compile": "off",
    "capture": "off",
}

MODES: dict[str, dict[str, str]] = {
    "auto": {},
    "eager": {"kernels": "plain", "compile": "off", "capture": "off"},
    "compiled": {"kernels": "plain", "compile": "on", "capture": "off"},
    "graph": {"capture": "on"},
    "streams": {"batched": "off"},
}
"""What each mode chooses for a field that is `auto`."""


def cannot_follow(chosen: EngineConfig, *, native: Callable[[torch.device], bool], gemm: Callable[[], bool]) -> str:
    """Why this machine cannot compute with the `chosen` settings, perhaps of another machine; empty if it can.

    `native` and `gemm` tell whether native kernels for a device and native convolutions of the chosen precision are
    available.
    """
    try:
        device = device_for(chosen)
    except ValueError:
        return f"there is no device {chosen.device} here"
    if chosen.kernels in ("native", "winograd") and not native(device):
        return "the native kernels cannot be built here"
    if chosen.kernels == "winograd" and (device.type != "cpu" or not gemm()):
        return "this CPU cannot run engine.kernels=winograd"
    if chosen.compile == "on" and (missing := compiler_missing(device)):
        return f"torch.compile lacks {missing} here"
    bf16 = device.type == "cuda" and chosen.precision == "bf16"
    if bf16 and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "this GPU has no bf16"
    return ""


def resolve(
    config: EngineConfig,
    *,
    load_kernels: Callable[[torch.device], NormKernels | str],
    gemm_gain: Callable[[str], float],
    norms: set[str],
    optimizers: set[str],
    second_derivatives: bool,
    run_seconds: float | None,
    skips: bool,
    one_size: bool,
    dropout: bool,
) -> tuple[EngineConfig, list[Decision]]:
    """`config` with every `auto` decided, and the reasons.

    `load_kernels` gives the native kernels for a device, or says why there are none. `gemm_gain` measures how many
    times faster native convolutions of a precision are than the library's; 0 if there are none.
    `norms` are the kinds of norm in the networks, `optimizers` those of optimizers. `second_derivatives`: the loss
    needs them (wgangp). `run_seconds` is the length of the run, if known. `skips`: broken steps are skipped.
    `one_size`: all images have one size. `dropout`: networks draw random numbers.
    """
    device = device_for(config)
    picks = [Decision("device", str(device), "asked for" if config.device != "auto" else "the fastest found")]
    chosen: dict[str, object] = {"device": str(device), "threads": config.threads or default_threads()}
    if config.mode == "reference":
        picks.append(Decision("mode", "reference", "asked for: float32, eager, one pass per image, plain optimizers"))
        return config.model_copy(update=chosen | REFERENCE), picks

    def compiling(*, native: bool) -> tuple[str, str]:
        recomputes, missing = config.checkpoint_activations == "on", compiler_missing(device)
        given: dict[str, Any] = {"second": second_derivatives, "seconds": run_seconds, "missing": missing}
        return _compile(device, native=native, recomputes=recomputes, **given)

    compile_asked = config.compile if config.compile != "auto" else MODES[config.mode].get("compile")
    rules = {
        "precision": lambda: _precision(device, second=second_derivatives),
        "batched": lambda: _batched(norms, one_size=one_size),
        "kernels": lambda: _kernels(
            device,
            norms,
            load_kernels,
            gemm_gain,
            precision=str(chosen["precision"]),
            compiles=device.type == "cuda" and (compile_asked or compiling(native=False)[0]) == "on",
        ),
        "checkpoint_activations": lambda: ("off", "only where asked for: it takes time"),
        "compile": lambda: compiling(native=chosen["kernels"] != "plain"),
        "capture": lambda: _capture(
            device,
            unfused=_unfused(optimizers),
            skips=skips,
            one_size=one_size,
            redraws=dropout and chosen["checkpoint_activations"] == "on",
        ),
    }
    for what, rule in rules.items():
        asked, of_mode = getattr(config, what), MODES[config.mode].get(what)
        if asked != "auto":
            choice, why = asked, "asked for"
        else:
            choice, why = (of_mode, f"engine.mode={config.mode}") if of_mode else rule()
        chosen[what] = choice
        picks.append(Decision(what, choice, why))
    _refuse(
        chosen,
        device,
        mode=config.mode,
        norms=norms,
        optimizers=optimizers,
        second=second_derivatives,
        skips=skips,
        dropout=dropout,
    )
    return config.model_copy(update=chosen), picks


def _precision(device: torch.device, *, second: bool) -> tuple[str, str]:
    choice, why = precision_for(device)
    if choice == "fp16" and second:
        return "fp32", "this GPU has no bf16, and the gradient penalty's small numbers vanish in float16"
    return choice, why


def _batched(norms: set[str], *, one_size: bool) -> tuple[str, str]:
    if not one_size:
        return "off", "the images differ in size"
    if norms & {"batch", "sync_batch"}:
        return "off", "batch norm sees a batch, so passes must stay apart"
    return "on", "exact, since norms are per sample"


def _unfused(optimizers: set[str]) -> str:
    return " and ".join(sorted(optimizers.difference(FUSED)))


def _kernels(
    device: torch.device,
    norms: set[str],
    load_kernels: Callable[[torch.device], NormKernels | str],
    gemm_gain: Callable[[str], float],
    *,
    precision: str,
    compiles: bool,
) -> tuple[str, str]:
    if compiles:
        return "plain", "torch.compile writes kernels for this run"
    if precision == "fp16":
        return "plain", "the native kernels know float32 and bfloat16"
    if not norms & {"instance", "none"}:
        return "plain", "the native kernels are for instance norm, or none"
    if isinstance(found := load_kernels(device), str):
        return "plain", found
    if device.type != "cpu":
        return "native", "norm, activation, residual and padding by Triton, checked here against the plain layers"
    gain = gemm_gain(precision)
    if gain > 1.1:
        return (
            "winograd",
            f"native {precision} convolutions measured {gain:.1f}x as fast as the library's, forward and backward",
        )
    return "native", "norm, activation, residual and padding in two passes over memory"


def _compile(
    device: torch.device, *, native: bool, recomputes: bool, second: bool, seconds: float | None, missing: str
) -> tuple[str, str]:
    if second:
        return "off", "the gradient penalty needs second derivatives"
    if recomputes:
        return "off", "it chooses by itself which activations it keeps"
    if native and device.type == "cpu":
        return "off", "the native kernels are faster and start at once"
    if device.type != "cuda":
        return "off", f"its start-up takes more time than it saves on {device.type}"
    if missing:
        return "off", f"it needs {missing}, which is not installed"
    if seconds is not None and seconds < COMPILE_PAYS_AFTER_S:
        return "off", f"the run is shorter than {COMPILE_PAYS_AFTER_S / 60:.0f} minutes"
    if native:
        return "off", "engine.kernels=native takes its place"
    return "on", "the run is long enough to gain more than compilation takes"


def _capture(device: torch.device, *, unfused: str, skips: bool, one_size: bool, redraws: bool) -> tuple[str, str]:
    if device.type != "cuda":
        return "off", "only a CUDA step can be captured"
    if skips:
        return "off", "train.on_nonfinite=skip waits for the device in every phase"
    if unfused:
        return "off", f"PyTorch has no fused {unfused}, so the optimizer waits for the device in every phase"
    if not one_size:
        return "off", "the images differ in size"
    if redraws:
        return "off", "dropout of recomputed activations puts random numbers back from the host"
    return "on", "the host launches a step at once, so that the device does not wait for it"


def _refuse(
    chosen: dict[str, object],
    device: torch.device,
    *,
    mode: str,
    norms: set[str],
    optimizers: set[str],
    second: bool,
    skips: bool,
    dropout: bool,
) -> None:
    running = norms & {"batch", "sync_batch"}
    if chosen["kernels"] == "winograd" and device.type != "cpu":
        raise ValueError(f"engine.kernels=winograd is for CPUs, not {device}: set engine.kernels=native, or plain")
    if chosen["kernels"] == "native" and device.type not in ("cpu", "cuda"):
        raise ValueError(f"engine.kernels=native is for CPUs and CUDA, not {device}: set engine.kernels=plain")
    if chosen["kernels"] == "native" and chosen["compile"] == "on" and device.type == "cuda":
        raise ValueError(
            "engine.kernels=native and engine.compile=on are two ways to write the same kernels: set one of them"
        )
    if chosen["precision"] == "fp16" and chosen["kernels"] != "plain":
        raise ValueError(
            f"engine.kernels={chosen['kernels']} does not compute in float16: set engine.precision=bf16, or "
            "engine.kernels=plain"
        )
    if chosen["precision"] == "fp16" and second:
        raise ValueError(
            "engine.precision=fp16 loses the small numbers of wgangp's gradient penalty and of method.penalty: set "
            "engine.precision=fp32"
        )
    if chosen["batched"] == "on" and running:
        raise ValueError(
            "engine.batched=on changes the mathematics of batch norm: set engine.batched=off, or norm=instance"
        )
    if chosen["compile"] == "on" and second:
        raise ValueError(
            "engine.compile=on cannot compute wgangp's gradient penalty, nor method.penalty: set engine.compile=off"
        )
    if chosen["compile"] == "on" and (missing := compiler_missing(device)):
        raise ValueError(f"engine.compile=on needs {missing}: install it, or set engine.compile=off")
    recomputes = chosen["checkpoint_activations"] == "on"
    if recomputes and running:
        raise ValueError(
            "engine.checkpoint_activations=on changes batch norm, which would count each batch twice: set "
            "engine.checkpoint_activations=off, or norm=instance"
        )
    if recomputes and chosen["compile"] == "on":
        raise ValueError(
            "engine.checkpoint_activations=on does not go with engine.compile=on, which chooses by itself which "
            "activations it keeps: set one of them off"
        )
    if recomputes and dropout and chosen["capture"] == "on":
        raise ValueError(
            "engine.checkpoint_activations=on draws dropout's random numbers again, which engine.capture=on cannot: "
            "set engine.capture=off, or generator.dropout=false"
        )
    if chosen["capture"] == "on" and skips:
        raise ValueError(
            "engine.capture=on cannot leave out broken steps: set engine.capture=off, or train.on_nonfinite=stop"
        )
    if chosen["capture"] == "on" and _unfused(optimizers):
        raise ValueError(
            f"engine.capture=on needs fused optimizers: set an optimizer kind of {', '.join(FUSED)}, or "
            "engine.capture=off"
        )
    if mode == "streams" and chosen["batched"] == "on":
        raise ValueError("engine.mode=streams runs cycles apart: set engine.batched=off, or engine.mode=auto")
    if mode == "streams" and running:
        raise ValueError(
            "engine.mode=streams changes the mathematics of batch norm, whose running statistics depend on the order "
            "of the cycles: set engine.mode=auto, or norm=instance"
        )
