"""The engine's choices for a run: taken once, kept, and taken again where a machine cannot follow them."""

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
from velogan.files import counted
from velogan.kernels.fused import training_gain
from velogan.training.forward import norm_kernels, products
from velogan.training.resolve import Needs, resolve
from velogan.types import Decision


def decide(config: Config) -> tuple[EngineConfig, list[Decision]]:
    """The engine's `auto` fields, decided for this machine and run."""
    span, spec = parse_span(config.train.length), config.spec
    sections = [*spec.generators.values(), *spec.discriminators.values()]
    needs = Needs(
        norms={section.norm for section in sections},
        optimizers=set(config.optimizer.kinds),
        seconds=span.amount * 60 if span.unit == "minutes" else None,
        skips=config.train.on_nonfinite == "skip",
        one_size="crop" in config.data.preprocess,
        dropout=any(generator.dropout for generator in spec.generators.values()),
    )
    return resolve(config.engine, needs, load_kernels=norm_kernels, gemm_gain=partial(_gemm_gain, config))


def decide_again(config: Config, before: EngineConfig) -> tuple[EngineConfig, list[Decision], str]:
    """The choices of a continued run, and why they are others than `before`; an empty reason where they are not.

    What was chosen before holds as long as this machine can follow it and the user asks for nothing else: so a
    continued run computes as it did. Threads are as many as this machine has, where the user asks for no number: they
    change no result. ValueError where what the user asks for cannot be had.
    """
    if config.engine.threads is None:
        before = before.model_copy(update={"threads": default_threads()})
    asked = {
        name: value
        for name, value in config.engine.model_dump().items()
        if value not in ("auto", None) and value != getattr(before, name)
    }
    why = "asked for " + ", ".join(f"engine.{name}={value}" for name, value in asked.items())
    if "mode" in asked or "device" in asked:  # all else was decided for the other
        return *decide(config), why
    bound = before.mode == "reference" and not asked.keys() <= {"threads"}  # that mode decides all else
    wanted = before.model_copy(update={"mode": "auto", **asked} if bound else asked)
    if missing := unable(wanted):
        return *decide(config), missing
    if not asked:
        return before, [], ""
    with suppress(ValueError):  # what was chosen before may not go with what is asked for now
        return *decide(config.model_copy(update={"engine": wanted})), why
    return *decide(config), why


def unable(engine: EngineConfig) -> str:
    """Why this machine cannot compute with the choices `engine`, perhaps of another machine; empty if it can."""
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


def for_all(
    ranks: DistributedContext, asked: Config, engine: EngineConfig, picks: list[Decision]
) -> tuple[EngineConfig, list[Decision]]:
    """The first rank's choices as several ranks can follow them. ValueError where they cannot."""
    if not ranks.is_distributed:
        return engine, picks
    if engine.capture == "on":
        if asked.engine.capture == "on" or asked.engine.mode == "graph":
            raise ValueError("engine.capture=on is for one process, not several: set engine.capture=off")
        engine = engine.model_copy(update={"capture": "off"})
        off = Decision("capture", "off", "several processes exchange gradients in the middle of a step")
        picks = [off if pick.what == "capture" else pick for pick in picks]
    if _shares_statistics(asked) and not engine.device.startswith("cuda"):
        raise ValueError(f"norm=sync_batch shares statistics by NCCL, not on {engine.device}: set norm=batch")
    if engine.device.startswith("mps"):
        raise ValueError(
            f"engine.device={engine.device} with several processes cannot be used: say --engine.device cpu"
        )
    count = asked.images_per_update
    each = f"{counted(count, 'image')} each: {ranks.world * count} an update"
    return engine, [*picks, Decision("processes", f"{ranks.world} of {each}", "started by torchrun")]


def _shares_statistics(config: Config) -> bool:
    sections = (*config.spec.generators.values(), *config.spec.discriminators.values())
    return any(section.norm == "sync_batch" for section in sections)


def on_this_host(ranks: DistributedContext, asked: EngineConfig, engine: EngineConfig) -> EngineConfig:
    """The common choices, with this rank's share of its host's cores. ValueError where it cannot compute so."""
    if not ranks.is_distributed:
        return engine
    if missing := unable(engine):
        raise ValueError(f"the first rank chose what cannot be computed here: {missing}; say --engine.mode eager")
    return engine.model_copy(
        update={"threads": asked.threads or max(1, default_threads() // ranks.local_world)},
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
