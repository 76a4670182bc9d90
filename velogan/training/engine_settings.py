"""Resolve the engine's `auto` fields when a run starts; on resume only if settings change or are unsupported."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import torch
from torch import nn

from velogan.config import Config
from velogan.engine.compiled import find_missing_compiler
from velogan.engine.config import EngineConfig
from velogan.engine.device import select_device
from velogan.engine.distributed import DistributedContext
from velogan.engine.duration import parse_span
from velogan.engine.processes import available_cores
from velogan.files import pluralize
from velogan.kernels.fused import measure_training_speedup
from velogan.training.engine_rules import MODES, RunProperties, find_conflict, resolve_auto
from velogan.training.forward import load_gemm, load_norm_kernels
from velogan.types import Decision


def resolve_engine(config: Config, *, processes: int = 1) -> tuple[EngineConfig, list[Decision]]:
    """Resolve the engine's `auto` fields for this machine and number of `processes`; return the decisions, too."""
    engine, decisions = resolve_auto(
        config.engine,
        _run_properties(config, processes),
        load_kernels=load_norm_kernels,
        measure_gemm_speedup=partial(_measure_gemm_speedup, config),
    )
    if processes > 1:
        count = config.images_per_update
        value = f"{processes} with {pluralize(count, 'image')} each: {processes * count} per update"
        decisions = [*decisions, Decision("processes", value, "started by torchrun")]
    return engine, decisions


def resolve_engine_on_resume(
    config: Config, previous: EngineConfig, *, processes: int = 1
) -> tuple[EngineConfig, list[Decision], str]:
    """Return the engine settings of a resumed run, the decisions, and why the settings changed (empty: they did not).

    A resumed run keeps its settings if it can. Raises ValueError if the requested settings are not possible.

    - Unchanged: this machine supports `previous`, and the user requests no other settings.
    - Threads only: their default, one per core, differs on this machine. Results stay the same, so the reason is empty.
    - User override: the requested fields change. If mode or device changes, or fields conflict, all are resolved again.
    - Unsupported here: `previous` does not suit this machine or number of `processes`; all fields are resolved again.
    """
    if config.engine.threads is None:
        previous = previous.model_copy(update={"threads": len(available_cores())})
    explicit = {name: value for name, value in config.engine.model_dump().items() if value not in ("auto", None)}
    requested = explicit | MODES[config.engine.mode] | explicit  # what the user sets overrides the mode
    override = {name: value for name, value in requested.items() if value != getattr(previous, name)}
    if override:
        reason = "requested: " + ", ".join(f"engine.{name}={value}" for name, value in override.items())
        changed = previous.model_copy(update=override)
        if override.keys().isdisjoint(("mode", "device")) and not unsupported_reason(changed):
            with suppress(ValueError):  # earlier settings may conflict with the requested ones
                return *resolve_engine(config.model_copy(update={"engine": changed}), processes=processes), reason
        return *resolve_engine(config, processes=processes), reason
    if problem := unsupported_reason(previous) or find_conflict(previous, _run_properties(config, processes)):
        return *resolve_engine(config, processes=processes), problem
    return previous, [], ""


def _run_properties(config: Config, processes: int) -> RunProperties:
    span, spec = parse_span(config.train.length), config.spec
    return RunProperties(
        norms=spec.norms,
        optimizers=set(config.optimizer.kinds),
        seconds=span.amount * 60 if span.unit == "minutes" else None,
        has_one_size="crop" in config.data.preprocess,
        has_dropout=any(generator.dropout for generator in spec.generators.values()),
        processes=processes,
    )


def unsupported_reason(engine: EngineConfig) -> str:
    """Return why this machine does not support the settings `engine`; empty if it does."""
    try:
        device = select_device(engine)
    except ValueError:
        return f"engine.device={engine.device} is not available here"
    if engine.kernels in ("native", "winograd") and isinstance(load_norm_kernels(device), str):
        return "the native kernels cannot be built here"
    if engine.kernels == "winograd" and (device.type != "cpu" or load_gemm(engine.precision) is None):
        return "this CPU cannot run engine.kernels=winograd"
    if engine.compile == "on" and (missing := find_missing_compiler(device)):
        return f"torch.compile lacks {missing} here"
    bf16 = device.type == "cuda" and engine.precision == "bf16"
    if bf16 and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "this GPU has no bf16"
    return ""


def assign_threads(distributed: DistributedContext, requested: EngineConfig, engine: EngineConfig) -> EngineConfig:
    """Return rank 0's `engine` with this rank's number of threads. Raises ValueError if this machine lacks support."""
    if not distributed.is_distributed:
        return engine
    if missing := unsupported_reason(engine):
        raise ValueError(f"rank 0 uses engine settings that are not supported here: {missing}; set --engine.mode eager")
    return engine.model_copy(
        update={"threads": requested.threads or max(1, len(available_cores()) // distributed.local_world_size)},
    )


def _measure_gemm_speedup(config: Config, precision: str) -> float:
    """Measure how fast native convolutions are relative to PyTorch's in a typical layer; 0 if none fits it."""
    gemm, net = load_gemm(precision), config.generator
    if gemm is None:
        return 0.0
    channels = net.encoding_channels
    if channels < gemm.min_useful_channels:
        return 0.0
    if net.has_stages and net.blocks > 0:
        return measure_training_speedup(nn.Conv2d(channels, channels, 3), gemm)
    return measure_training_speedup(nn.Conv2d(2 * channels, 2 * channels, 4, stride=2, padding=1), gemm)
