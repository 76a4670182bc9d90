"""Turns `auto` into decisions, each with its reason: printed, recorded, and the same on resume."""

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


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What the choices depend on besides the machine.

    `norms` are the kinds of norm in the networks, `optimizers` those of optimizers. `seconds` is the length of the run,
    if known. `skips`: broken steps are skipped. `one_size`: all images have one size. `dropout`: networks draw random
    numbers.
    """

    norms: set[str]
    optimizers: set[str]
    seconds: float | None
    skips: bool
    one_size: bool
    dropout: bool

    @property
    def running(self) -> bool:
        """Whether a norm keeps running statistics of batches."""
        return not self.norms.isdisjoint(("batch", "sync_batch"))

    @property
    def unfused(self) -> str:
        """The optimizers that PyTorch has in no fused form."""
        return " and ".join(sorted(self.optimizers.difference(FUSED)))


def resolve(
    config: EngineConfig,
    needs: Needs,
    *,
    load_kernels: Callable[[torch.device], NormKernels | str],
    gemm_gain: Callable[[str], float],
) -> tuple[EngineConfig, list[Decision]]:
    """`config` with every `auto` decided, and the reasons.

    `load_kernels` gives the native kernels for a device, or says why there are none. `gemm_gain` measures how many
    times faster native convolutions of a precision are than the library's; 0 if there are none.
    """
    device = device_for(config)
    picks = [Decision("device", str(device), "asked for" if config.device != "auto" else "the fastest found")]
    chosen: dict[str, object] = {"device": str(device), "threads": config.threads or default_threads()}
    if config.mode == "reference":
        picks.append(Decision("mode", "reference", "asked for: float32, eager, one pass per image, plain optimizers"))
        return config.model_copy(update=chosen | REFERENCE), picks

    rules = {
        "precision": lambda: precision_for(device),
        "batched": lambda: _batched(needs),
        "kernels": lambda: _kernels(device, needs, load_kernels, gemm_gain, precision=str(chosen["precision"])),
        "checkpoint_activations": lambda: ("off", "only where asked for: it takes time"),
        "compile": lambda: _compile(
            device,
            needs,
            native=chosen["kernels"] != "plain",
            recomputes=chosen["checkpoint_activations"] == "on",
        ),
        "capture": lambda: _capture(device, needs, recomputes=chosen["checkpoint_activations"] == "on"),
    }
    for what, rule in rules.items():
        asked, of_mode = getattr(config, what), MODES[config.mode].get(what)
        if asked != "auto":
            choice, why = asked, "asked for"
        else:
            choice, why = (of_mode, f"engine.mode={config.mode}") if of_mode else rule()
        chosen[what] = choice
        picks.append(Decision(what, choice, why))
    _refuse(chosen, device, needs, mode=config.mode)
    return config.model_copy(update=chosen), picks


def _batched(needs: Needs) -> tuple[str, str]:
    if not needs.one_size:
        return "off", "the images differ in size"
    if needs.running:
        return "off", "batch norm sees a batch, so passes must stay apart"
    return "on", "exact, since norms are per sample"


def _kernels(
    device: torch.device,
    needs: Needs,
    load_kernels: Callable[[torch.device], NormKernels | str],
    gemm_gain: Callable[[str], float],
    *,
    precision: str,
) -> tuple[str, str]:
    if device.type == "cuda":
        return "plain", "no record on a GPU shows the Triton kernels faster; engine.kernels=native selects them"
    if precision == "fp16":
        return "plain", "the native kernels know float32 and bfloat16"
    if not needs.norms & {"instance", "none"}:
        return "plain", "the native kernels are for instance norm, or none"
    if isinstance(found := load_kernels(device), str):
        return "plain", found
    gain = gemm_gain(precision)
    if gain > 1.1:
        return (
            "winograd",
            f"native {precision} convolutions measured {gain:.1f}x as fast as the library's, forward and backward",
        )
    return "native", "norm, activation, residual and padding in two passes over memory"


def _compile(device: torch.device, needs: Needs, *, native: bool, recomputes: bool) -> tuple[str, str]:
    if recomputes:
        return "off", "it chooses by itself which activations it keeps"
    if native and device.type == "cpu":
        return "off", "the native kernels are faster and start at once"
    if device.type != "cuda":
        return "off", f"its start-up takes more time than it saves on {device.type}"
    if missing := compiler_missing(device):
        return "off", f"it needs {missing}, which is not installed"
    if needs.seconds is not None and needs.seconds < COMPILE_PAYS_AFTER_S:
        return "off", f"the run is shorter than {COMPILE_PAYS_AFTER_S / 60:.0f} minutes"
    if native:
        return "off", "engine.kernels=native takes its place"
    return "on", "the run is long enough to gain more than compilation takes"


def _capture(device: torch.device, needs: Needs, *, recomputes: bool) -> tuple[str, str]:
    if device.type != "cuda":
        return "off", "only a CUDA step can be captured"
    if needs.skips:
        return "off", "train.on_nonfinite=skip waits for the device in every phase"
    if needs.unfused:
        return "off", f"PyTorch has no fused {needs.unfused}, so the optimizer waits for the device in every phase"
    if not needs.one_size:
        return "off", "the images differ in size"
    if needs.dropout and recomputes:
        return "off", "dropout of recomputed activations puts random numbers back from the host"
    return "on", "the host launches a step at once, so that the device does not wait for it"


def _refuse(chosen: dict[str, object], device: torch.device, needs: Needs, *, mode: str) -> None:
    kernels, running = chosen["kernels"], needs.running
    half, compiles, captures = chosen["precision"] == "fp16", chosen["compile"] == "on", chosen["capture"] == "on"
    batched, recomputes = chosen["batched"] == "on", chosen["checkpoint_activations"] == "on"
    missing = compiler_missing(device) if compiles else ""
    refused = (
        (
            kernels == "winograd" and device.type != "cpu",
            f"engine.kernels=winograd is for CPUs, not {device}: set engine.kernels=native, or plain",
        ),
        (
            kernels == "native" and device.type not in ("cpu", "cuda"),
            f"engine.kernels=native is for CPUs and CUDA, not {device}: set engine.kernels=plain",
        ),
        (
            kernels == "native" and compiles and device.type == "cuda",
            "engine.kernels=native and engine.compile=on are two ways to write the same kernels: set one of them",
        ),
        (
            half and kernels != "plain",
            f"engine.kernels={kernels} does not compute in float16: set engine.precision=bf16, or engine.kernels=plain",
        ),
        (
            batched and running,
            "engine.batched=on changes the mathematics of batch norm: set engine.batched=off, or norm=instance",
        ),
        (missing, f"engine.compile=on needs {missing}: install it, or set engine.compile=off"),
        (
            recomputes and running,
            "engine.checkpoint_activations=on changes batch norm, which would count each batch twice: set "
            "engine.checkpoint_activations=off, or norm=instance",
        ),
        (
            recomputes and compiles,
            "engine.checkpoint_activations=on does not go with engine.compile=on, which chooses by itself which "
            "activations it keeps: set one of them off",
        ),
        (
            recomputes and needs.dropout and captures,
            "engine.checkpoint_activations=on draws dropout's random numbers again, which engine.capture=on cannot: "
            "set engine.capture=off, or generator.dropout=false",
        ),
        (
            captures and needs.skips,
            "engine.capture=on cannot leave out broken steps: set engine.capture=off, or train.on_nonfinite=stop",
        ),
        (
            captures and needs.unfused,
            f"engine.capture=on needs fused optimizers: set an optimizer kind of {', '.join(FUSED)}, or "
            "engine.capture=off",
        ),
        (
            mode == "streams" and batched,
            "engine.mode=streams runs cycles apart: set engine.batched=off, or engine.mode=auto",
        ),
        (
            mode == "streams" and running,
            "engine.mode=streams changes the mathematics of batch norm, whose running statistics depend on the order "
            "of the cycles: set engine.mode=auto, or norm=instance",
        ),
    )
    for applies, why in refused:
        if applies:
            raise ValueError(why)
