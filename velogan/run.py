"""Builds everything from a Config and starts it: the first file to read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from velogan.config import Config
from velogan.data.cache import Domain, open_domain
from velogan.data.loader import PairLoader, crop_shapes, window
from velogan.data.sources import Sources, cache_directory, find_sources
from velogan.engine.config import EngineConfig
from velogan.engine.duration import parse_span
from velogan.engine.ema import EMA
from velogan.engine.fused import Fused
from velogan.engine.native import NormKernels, load_kernels
from velogan.engine.optimizers import build_optimizers
from velogan.engine.resolve import Pick, resolve, resolve_device
from velogan.engine.step import Step
from velogan.engine.trainer import Trainer
from velogan.networks.discriminators import build_discriminator
from velogan.networks.generators import build_generator
from velogan.objectives.cyclegan import CycleGAN
from velogan.observe.progress import Display
from velogan.session import Result, Session


def train(config: Config, run: Path, *, display: Display, origin: Mapping[str, Any]) -> Result:
    """Trains `config` in the folder `run`, or continues what is there. ValueError for what the user can mend.

    `origin` holds the `preset` and the `command` for the record.
    """
    session = Session.open(run, config, say=display.say)
    data = open_data(session.config, display)
    config, fitted = fit_channels(session.config, data)
    check_sizes(config, data)
    with session.lock():
        engine, picks = decide(config)
        picks = [*fitted, *picks]
        config = config.model_copy(update={"engine": engine})
        trainer = build_trainer(config, data)
        samplers = players(trainer.ema.nets, config)
        session.start(config, trainer, data=data, picks=picks, origin=origin)
        return session.run(display, samplers=samplers)


@dataclass(frozen=True)
class Data:
    """Both domains: where they came from, the prepared training pictures, and the loader's settings."""

    sources: Sources
    a: Domain
    b: Domain


def open_data(config: Config, display: Display) -> Data:
    """Finds, renders or decodes the training pictures of both domains, once."""
    sources = find_sources(config.data, progress=display.task("rendering"))
    domains = []
    for side in (sources.a, sources.b):
        progress = display.task(f"preparing {side.letter}")
        domain = open_domain(side.train, config.data, test=False, **config.reading(side.letter), progress=progress)
        for line in filter(None, (domain.note, domain.skipped_line)):
            display.say(f"domain {side.letter}: {line}")
        domains.append(domain)
    return Data(sources, *domains)


def fit_channels(config: Config, data: Data) -> tuple[Config, list[Pick]]:
    """The configuration with the channels that both domains' pictures have, and what follows from them."""
    a, b = data.a.format.channels, data.b.format.channels
    picks = []
    if a != b and config.objective.identity:
        picks.append(Pick("identity loss", "off", f"channels of domain A: {a}, of domain B: {b}"))
    return config.change(generator={"in_channels": a, "out_channels": b}), picks


def check_sizes(config: Config, data: Data) -> None:
    """ValueError where pictures do not fit the networks."""
    multiple, channels = config.generator.multiple, {"generator": config.generator.in_channels or 3, "discriminator": 3}
    for shape in sorted(crop_shapes(config.data, data.a) | crop_shapes(config.data, data.b)):
        size = f"{shape[1]}x{shape[0]}"
        if any(side % multiple for side in shape):
            fits = max(multiple, config.data.crop_size // multiple * multiple)
            raise ValueError(
                f"generator.network={config.generator.network} needs sides divisible by {multiple}, but pictures come "
                f"as {size}: set data.crop_size={fits} with a preprocess that crops, or use resnet"
            )
        for part, build in (("generator", build_generator), ("discriminator", build_discriminator)):
            try:
                with torch.device("meta"):
                    build(getattr(config, part))(torch.empty(1, channels[part], *shape))
            except (RuntimeError, ValueError) as error:
                raise ValueError(
                    f"{part}.network={getattr(config, part).network} cannot take pictures of {size} "
                    f"({str(error).splitlines()[0]}): set a larger data.crop_size (--image-size), or a smaller network"
                ) from None


def decide(config: Config) -> tuple[EngineConfig, list[Pick]]:
    """The engine's `auto` fields, decided for this machine and run."""
    span = parse_span(config.train.length)
    return resolve(
        config.engine,
        load_kernels=lambda: _kernels(config),
        norms={config.generator.norm, config.discriminator.norm},
        second_derivatives=config.objective.gan == "wgangp",
        run_seconds=span.amount * 60 if span.unit == "minutes" else None,
    )


def build_networks(config: Config) -> dict[str, nn.Module]:
    """The four networks, initialised from the seed in the reference's order, on the CPU."""
    torch.manual_seed(config.train.seed)
    of_a, of_b = config.generator.in_channels or 3, config.generator.out_channels or 3
    return {
        "G_A": build_generator(config.generator_for("G_A")),
        "G_B": build_generator(config.generator_for("G_B")),
        "D_A": build_discriminator(config.discriminator, in_channels=of_b),
        "D_B": build_discriminator(config.discriminator, in_channels=of_a),
    }


def players(nets: Mapping[str, nn.Module], config: Config) -> dict[str, nn.Module]:
    """What the losses call: the networks themselves, or faster equivalents over the same weights."""
    engine = config.engine
    fast: Callable[[nn.Module], nn.Module] | None = None
    if engine.kernels == "native":
        kernels = _kernels(config)
        if kernels is None:
            raise ValueError("engine.kernels=native cannot be built here: install g++, or set engine.kernels=plain")
        fast = partial(Fused, kernels=kernels)
    elif engine.compile == "on":
        fast = partial(torch.compile, dynamic=False)  # pyright: ignore[reportAssignmentType]
    if fast is None:
        return dict(nets)
    judges_twice = config.objective.gan == "wgangp"  # its gradient penalty needs second derivatives
    plain = {role for role in nets if judges_twice and role.startswith("D_")}
    return {role: net if role in plain else fast(net) for role, net in nets.items()}


def _kernels(config: Config) -> NormKernels | None:
    return load_kernels(cache_directory(config.data) / "kernels")


def build_step(config: Config, *, shape: tuple[int, int]) -> tuple[Step, CycleGAN, dict[str, nn.Module]]:
    """The step for images of `shape` (H, W), its objective, and the networks, on the configured device."""
    engine, device = config.engine, resolve_device(config.engine.device)
    nets = {role: net.to(device) for role, net in build_networks(config).items()}
    objective = CycleGAN(
        config.objective,
        shape_a=(config.generator.in_channels or 3, *shape),
        shape_b=(config.generator.out_channels or 3, *shape),
        batched=engine.batched == "on",
    )
    objective.state.to(device)
    if engine.layout == "channels_last":
        nets = {role: net.to(memory_format=torch.channels_last) for role, net in nets.items()}  # pyright: ignore
    phases = objective.phases()
    step = Step(
        phases,
        nets=nets,
        players=players(nets, config),
        optimizers=build_optimizers(config.optimizer, phases=phases, nets=nets, fused=engine.fused_optimizer == "on"),
        autocast=torch.bfloat16 if engine.precision == "bf16" else None,
        channels_last=engine.layout == "channels_last",
        check_later=device.type == "cuda" and engine.fused_optimizer == "on" and config.train.on_nonfinite == "stop",
    )
    return step, objective, nets


def build_trainer(config: Config, data: Data) -> Trainer:
    """Networks, objective, optimizers, loader: wired."""
    if config.engine.threads:
        torch.set_num_threads(config.engine.threads)
    device = resolve_device(config.engine.device)
    loader = PairLoader(data.a, data.b, config.data, seed=config.train.seed, device=device)
    shapes = crop_shapes(config.data, data.a) | crop_shapes(config.data, data.b)
    if len(shapes) > 1 and config.objective.pool_size:
        raise ValueError(
            f"objective.pool_size={config.objective.pool_size} needs images of one size, but data.preprocess="
            f"{config.data.preprocess} gives {len(shapes)}: set objective.pool_size=0 or a preprocess that crops"
        )
    step, objective, nets = build_step(config, shape=window(config.data, data.a.shape(0)))
    generators = {role: net for role, net in nets.items() if role.startswith("G_")}
    return Trainer(
        step,
        loader,
        nets=nets,
        ema=EMA(generators, half_life=config.train.ema_images),
        state=objective.state,
        draws=objective.draws,
        batch_size=config.data.batch_size,
        seed=config.train.seed,
        device=device,
        on_nonfinite=config.train.on_nonfinite,
    )
