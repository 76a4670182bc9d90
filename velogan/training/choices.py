"""Resolve the engine's `auto` fields once per run, and again only if the machine does not support the result."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import torch
from torch import nn

from velogan.config import Config
from velogan.engine.compiled import compiler_missing
from velogan.engine.config import EngineConfig
from velogan.engine.device import device_for
from velogan.engine.distributed import DistributedContext
from velogan.engine.duration import parse_span
from velogan.engine.processes import default_threads
from velogan.files import pluralize
from velogan.kernels.fused import training_gain
from velogan.training.forward import norm_kernels, products
from velogan.training.resolve import MODES, Needs, conflict, resolve
from velogan.types import Decision


def decide(config: Config, *, processes: int = 1) -> tuple[EngineConfig, list[Decision]]:
    """Decide the engine's `auto` fields for this machine and run, which `processes` train together."""
    engine, decisions = resolve(
        config.engine, _needs(config, processes), load_kernels=norm_kernels, gemm_gain=partial(_gemm_gain, config)
    )
    if processes > 1:
        count = config.images_per_update
        each = f"{processes} of {pluralize(count, 'image')} each: {processes * count} an update"
        decisions = [*decisions, Decision("processes", each, "started by torchrun")]
    return engine, decisions


def resume(config: Config, before: EngineConfig, *, processes: int = 1) -> tuple[EngineConfig, list[Decision], str]:
    """Return the choices of a continued run, their reasons, and why they differ from `before`; empty if they do not.

    There are four cases, so that a continued run computes as it did if it can. Raises ValueError if what the user asks
    for is not possible.

    - Unchanged: this machine can follow `before`, and the user asks for nothing else.
    - Threads only: without a number from the user they are those of this machine. They change no result.
    - User override: the fields that the user sets change. With another mode or device all others are decided again.
    - Unsupported here: this machine cannot follow `before`, so all is decided again.
    """
    if config.engine.threads is None:
        before = before.model_copy(update={"threads": default_threads()})
    explicit = {name: value for name, value in config.engine.model_dump().items() if value not in ("auto", None)}
    requested = explicit | MODES[config.engine.mode] | explicit  # what the user sets overrules the mode
    override = {name: value for name, value in requested.items() if value != getattr(before, name)}
    if override:
        why = "asked for " + ", ".join(f"engine.{name}={value}" for name, value in override.items())
        changed = before.model_copy(update=override)
        if override.keys().isdisjoint(("mode", "device")) and not unable(changed):
            with suppress(ValueError):  # what was chosen before may not be possible with what is asked for now
                return *decide(config.model_copy(update={"engine": changed}), processes=processes), why
        return *decide(config, processes=processes), why
    if missing := unable(before) or conflict(before, _needs(config, processes)):
        return *decide(config, processes=processes), missing
    return before, [], ""


def _needs(config: Config, processes: int) -> Needs:
    span, spec = parse_span(config.train.length), config.spec
    return Needs(
        norms=spec.norms,
        optimizers=set(config.optimizer.kinds),
        seconds=span.amount * 60 if span.unit == "minutes" else None,
        one_size="crop" in config.data.preprocess,
        dropout=any(generator.dropout for generator in spec.generators.values()),
        processes=processes,
    )


def unable(engine: EngineConfig) -> str:
    """Return why this machine does not support the settings `engine`; empty if it does."""
    try:
        device = device_for(engine)
    except ValueError:
        return f"there is no device {engine.device} here"
    if engine.kernels in ("native", "winograd") and isinstance(norm_kernels(device), str):
        return "the native kernels cannot be built here"
    if engine.kernels == "winograd" and (device.type != "cpu" or products(engine.precision) is None):
        return "this CPU cannot run engine.kernels=winograd"
    if engine.compile == "on" and (missing := compiler_missing(device)):
        return f"torch.compile lacks {missing} here"
    bf16 = device.type == "cuda" and engine.precision == "bf16"
    if bf16 and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "this GPU has no bf16"
    return ""


def on_this_host(distributed: DistributedContext, asked: EngineConfig, engine: EngineConfig) -> EngineConfig:
    """Return rank 0's settings with this rank's share of its host's cores. Raises ValueError if unsupported here."""
    if not distributed.is_distributed:
        return engine
    if missing := unable(engine):
        raise ValueError(f"the first rank chose what cannot be computed here: {missing}; say --engine.mode eager")
    return engine.model_copy(
        update={"threads": asked.threads or max(1, default_threads() // distributed.local_world)},
    )


def _gemm_gain(config: Config, precision: str) -> float:
    gemm, net = products(precision), config.generator
    if gemm is None:
        return 0.0
    c, blocks = net.encoding, net.has_stages and net.blocks > 0
    if c < gemm.pays_from:
        return 0.0
    common = nn.Conv2d(c, c, 3) if blocks else nn.Conv2d(2 * c, 2 * c, 4, stride=2, padding=1)
    return training_gain(common, gemm)
