"""Builds everything from a Config and starts it: the first file to read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from velogan.config import Config
from velogan.data.domains.loader import PairLoader, crop_shapes, window
from velogan.data.domains.sources import code_directory
from velogan.domains import Data, check_sizes, fit_channels, open_data
from velogan.engine.capture import CapturedStep, CudaRecorder
from velogan.engine.compiled import compiled
from velogan.engine.config import EngineConfig
from velogan.engine.duration import parse_span
from velogan.engine.ema import EMA
from velogan.engine.memory import keep_freed_memory
from velogan.engine.optimizers import build_optimizers
from velogan.engine.resolve import Pick, device_for, resolve, resolve_device
from velogan.engine.step import Step
from velogan.engine.streams import Streams
from velogan.engine.trainer import Stepper, Trainer
from velogan.kernels.bf16_gemm import Bf16Gemm, load_bf16_gemm
from velogan.kernels.fused import Fused, training_gain
from velogan.kernels.native import NormKernels, load_kernels
from velogan.methods import averaged, build_networks, build_objective, displayed, pool_field
from velogan.networks.generators import ChangeGenerator
from velogan.objectives.base import Objective
from velogan.observe.progress import Display
from velogan.session import Result, Session
from velogan.types import Batch


def train(config: Config, run: Path, *, display: Display, origin: Mapping[str, Any]) -> Result:
    """Trains `config` in the folder `run`, or continues what is there. ValueError for what the user can mend.

    `origin` holds the `preset` and the `command` for the record.
    """
    session = Session.open(run, config, say=display.say)
    device_for(session.config.engine)  # before minutes of preparing pictures
    data = open_data(session.config, display)
    config, fitted = fit_channels(session.config, data)
    check_sizes(config, data)
    with session.lock():
        engine, picks = decide(config)
        picks = [*fitted, *picks]
        config = config.model_copy(update={"engine": engine})
        trainer = build_trainer(config, data)
        plain = config.change(engine={"compile": "off"})  # few pictures, of several shapes
        samplers = forward_nets(displayed(trainer.ema.nets, config), plain)
        session.start(config, trainer, data=data, picks=picks, origin=origin)
        return session.run(display, samplers=samplers)


def decide(config: Config) -> tuple[EngineConfig, list[Pick]]:
    """The engine's `auto` fields, decided for this machine and run."""
    span = parse_span(config.train.length)
    return resolve(
        config.engine,
        load_kernels=_kernels,
        gemm_gain=lambda: _gemm_gain(config),
        norms={config.generator.norm, config.discriminator.norm},
        second_derivatives=config.objective.gan == "wgangp",
        run_seconds=span.amount * 60 if span.unit == "minutes" else None,
        skips=config.train.on_nonfinite == "skip",
        one_size="crop" in config.data.preprocess,
    )


def forward_nets(nets: Mapping[str, nn.Module], config: Config) -> dict[str, nn.Module]:
    """What the losses call: the networks themselves, or faster equivalents over the same weights."""
    engine = config.engine
    fast: Callable[[nn.Module], nn.Module] | None = None
    if engine.kernels in ("native", "winograd"):
        kernels = _kernels()
        gemm = _gemm() if engine.kernels == "winograd" else None
        if kernels is None or (gemm is None and engine.kernels == "winograd"):
            raise ValueError(
                f"engine.kernels={engine.kernels} cannot be built here, or this CPU cannot run it: install g++, or set "
                "engine.kernels=plain"
            )
        fast = partial(Fused, kernels=kernels, gemm=gemm)
    elif engine.compile == "on":
        fast = partial(compiled, cache=code_directory() / "compiled")
    if fast is None:
        return dict(nets)
    judges_twice = config.objective.gan == "wgangp"  # its gradient penalty needs second derivatives
    plain = {role for role in nets if judges_twice and role.startswith("D_")}
    return {role: net if role in plain else _faster(net, fast) for role, net in nets.items()}


def _faster(net: nn.Module, fast: Callable[[nn.Module], nn.Module]) -> nn.Module:
    return net.by(fast) if isinstance(net, ChangeGenerator) else fast(net)


def _kernels() -> NormKernels | None:
    return load_kernels(code_directory() / "kernels")


def _gemm() -> Bf16Gemm | None:
    return load_bf16_gemm(code_directory() / "kernels")


def _gemm_gain(config: Config) -> float:
    gemm, c = _gemm(), config.generator.channels
    if gemm is None:
        return 0.0
    blocks = config.generator.network == "resnet" and config.generator.blocks > 0
    common = nn.Conv2d(4 * c, 4 * c, 3) if blocks else nn.Conv2d(8 * c, 8 * c, 4, stride=2, padding=1)
    return training_gain(common, gemm)


def build_step(
    config: Config, *, shape: tuple[int, int], prepare: Callable[[Batch], Batch] | None = None
) -> tuple[Stepper, Objective, dict[str, nn.Module]]:
    """The step for images of `shape` (H, W), its objective, and the networks, on the configured device.

    `prepare` is the loader's `finish`, where the step is fed from one.
    """
    engine, device = config.engine, resolve_device(config.engine.device)
    if device.type == "cpu":
        keep_freed_memory()
    nets = {role: net.to(device) for role, net in build_networks(config).items()}
    objective = build_objective(config, shape=shape, batched=engine.batched == "on")
    objective.state.to(device)
    if engine.layout == "channels_last":
        nets = {role: net.to(memory_format=torch.channels_last) for role, net in nets.items()}  # pyright: ignore
        objective.state.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    phases = objective.phases()
    step = Step(
        phases,
        nets=nets,
        forward_nets=forward_nets(nets, config),
        optimizers=build_optimizers(config.optimizer, phases=phases, nets=nets, fused=engine.fused_optimizer == "on"),
        autocast=torch.bfloat16 if engine.precision == "bf16" else None,
        channels_last=engine.layout == "channels_last",
        check_later=device.type == "cuda" and engine.fused_optimizer == "on" and config.train.on_nonfinite == "stop",
        runner=Streams(device) if engine.streams == "on" else None,
        prepare=prepare,
    )
    if engine.capture == "on":
        step = CapturedStep(step, state=objective.state, recorder=CudaRecorder(device))
    return step, objective, nets


def build_trainer(config: Config, data: Data) -> Trainer:
    """Networks, objective, optimizers, loader: wired."""
    if config.engine.threads:
        torch.set_num_threads(config.engine.threads)
    device = resolve_device(config.engine.device)
    loader = PairLoader(data.a, data.b, config.data, seed=config.train.seed, device=device)
    shapes = crop_shapes(config.data, data.a) | crop_shapes(config.data, data.b)
    field, size = pool_field(config)
    if len(shapes) > 1 and size:
        raise ValueError(
            f"{field}={size} needs images of one size, but data.preprocess={config.data.preprocess} gives "
            f"{len(shapes)}: set {field}=0 or a preprocess that crops"
        )
    shape = window(config.data, data.a.shape(0))
    step, objective, nets = build_step(config, shape=shape, prepare=loader.finish)
    return Trainer(
        step,
        loader,
        nets=nets,
        ema=EMA(averaged(nets), half_life=config.train.ema_images),
        state=objective.state,
        draws=objective.draws,
        batch_size=config.data.batch_size,
        seed=config.train.seed,
        device=device,
        on_nonfinite=config.train.on_nonfinite,
    )
