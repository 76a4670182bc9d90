"""Networks by role, step, loaders and trainer of a run, each wired from the sections of the configuration it needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from velogan.data.config import DataConfig
from velogan.data.sets.loader import PairLoader, window
from velogan.data.sets.pair import Data
from velogan.engine.capture import CapturedStep, CudaRecorder
from velogan.engine.config import EngineConfig, TrainConfig
from velogan.engine.cudnn import measure_convolutions
from velogan.engine.device import resolve_device, set_threads
from velogan.engine.distributed import DistributedContext
from velogan.engine.ema import EMA
from velogan.engine.loss_scale import LossScale
from velogan.engine.memory import keep_freed_memory
from velogan.engine.optimizers import FUSED, OptimizerConfig, build_optimizers
from velogan.engine.schedules import ScheduleConfig
from velogan.engine.step import Step
from velogan.engine.streams import Streams
from velogan.engine.trainer import Stepper, Trainer
from velogan.methods.base import Method, Role, Spec, Views
from velogan.methods.capabilities import (
    TakesTerms,
    TakesTrained,
    TrainedGenerator,
    capability,
)
from velogan.networks.build import Networks, build_network
from velogan.networks.generators import GeneratorConfig
from velogan.objectives.base import HALVES, Objective
from velogan.objectives.classes import SEGMENTER, WithClasses
from velogan.objectives.masks import WithMasks
from velogan.training.forward import forward_net, forward_nets
from velogan.training.resolve import RUNNING
from velogan.translate.model import load_translator
from velogan.types import Batch, Direction, Nets

Prepare = Callable[[Batch], Batch]
"""Makes the batch that a step takes of what a loader gives: `PairLoader.finish`."""


def build_roles(method: Method, spec: Spec, *, seed: int, colours: Tensor | None = None) -> dict[str, Role]:
    """The networks by role, initialised from `seed` in the reference implementation's order, on the CPU.

    With the `colours` of classes there is a segmenter, too. ValueError where pictures of A and B have other channels,
    which no one segmenter sees.
    """
    torch.manual_seed(seed)
    roles = method.roles(spec, Networks())
    if colours is not None:
        roles[SEGMENTER] = _segmenter(spec, colours)
    return roles


def take_trained(method: Method, roles: Mapping[str, Role]) -> None:
    """Gives the networks what the method takes of an earlier run. ValueError where that run has none that fit."""
    if taker := capability(method, TakesTrained):
        taker.take_trained(_nets(roles), _trained)


_WIDEST = 32
"""The most channels of a segmenter, which has those of the generator."""


def _segmenter(spec: Spec, colours: Tensor) -> Role:
    spec.check_equal_channels("data.labels_a, data.labels_b: the segmenter sees pictures of both domains")
    channels = min(spec.generators["a2b"].channels, _WIDEST)
    header = {"network": "segmenter", "in_channels": spec.channels["A"], "classes": len(colours), "channels": channels}
    return Role(net=build_network(header), header={**header, "colours": colours.int().tolist()})


def _trained(run: Path) -> TrainedGenerator:
    found = load_translator(run)
    return TrainedGenerator(found.net, GeneratorConfig.model_validate(found.header["config"]))


def _nets(roles: Mapping[str, Role]) -> dict[str, nn.Module]:
    return {name: role.net for name, role in roles.items()}


def averaged_views(method: Method, spec: Spec, averages: Nets, engine: EngineConfig) -> Views:
    """The generators that sample grids and validation look at: over the weights of `averages`, as fast as training."""
    plain = engine.model_copy(update={"compile": "off"})  # few pictures, of several shapes
    views = method.views(averages, spec)
    faster = partial(forward_net, engine=plain)
    generators: dict[Direction, nn.Module] = {way: faster(net) for way, net in views.generators.items()}
    reconstruction = faster(views.reconstruction) if views.reconstruction else None
    return replace(views, generators=generators, reconstruction=reconstruction)


def build_step(
    method: Method,
    spec: Spec,
    roles: Mapping[str, Role],
    *,
    shape: tuple[int, int],
    data: DataConfig,
    train: TrainConfig,
    engine: EngineConfig,
    optimizer: OptimizerConfig,
    prepare: Callable[[str], Prepare] | None = None,
    distributed: DistributedContext | None = None,
    only: Sequence[str] = (),
) -> tuple[Stepper, Objective, dict[str, nn.Module]]:
    """The step for images of `shape` (H, W), its objective, and the networks of `roles`, on the device of `engine`.

    Nothing in `engine` is `auto`. `prepare` gives the `finish` of a split's loader, where the step is fed from loaders.
    `only` names the phases that run, where some are left out. Where there are label maps, `roles` has a segmenter.
    """
    device = resolve_device(engine.device)
    if device.type == "cpu":
        keep_freed_memory()
    measure_convolutions(device, one_size="crop" in data.preprocess)
    nets = {name: net.to(device) for name, net in _nets(roles).items()}
    # passes through the same weights run as one batch where that is exact: with norms of single images, of one size
    joins = engine.mode in ("eager", "graph") and "crop" in data.preprocess and not spec.norms & RUNNING
    objective: Objective = method.objective(spec, shape=shape, batched=joins)
    for prefix, wrapped in (("mask_", WithMasks), ("label_", WithClasses)):
        if any(name.startswith(prefix) for name in data.annotations):
            assert isinstance(method, TakesTerms)
            objective = wrapped(objective, method.fakes, name="generator")
    objective.state.to(device)
    if engine.channels_last:
        for module in (*nets.values(), objective.state):
            module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    phases = objective.phases()
    lean = [name for name, role in roles.items() if role.averaged and engine.checkpoint_activations == "on"]
    fused = engine.mode != "reference"
    optimizers = build_optimizers(optimizer, phases=phases, nets=nets, fused=fused)
    frozen_at_a_break = device.type == "cuda" and fused and optimizer.kinds <= set(FUSED)
    if only:
        phases = [phase for phase in phases if phase.name in only]
        optimizers = {name: one for name, one in optimizers.items() if name.partition("/")[0] in only}
    step = Step(
        phases,
        nets=nets,
        forward_nets=forward_nets(nets, engine, recomputed=lean),
        optimizers=optimizers,
        autocast={"bf16": torch.bfloat16, "fp16": torch.float16}.get(engine.precision),
        channels_last=engine.channels_last,
        check_later=frozen_at_a_break,
        runner=Streams(device) if engine.mode == "streams" else None,
        prepare={split: prepare(split) for split in objective.draws} if prepare else None,
        accumulate=train.accumulate,
        scale=LossScale(device) if engine.precision == "fp16" else None,
        distributed=distributed,
    )
    if engine.captures:
        step = CapturedStep(step, state=objective.state, recorder=CudaRecorder(device))
    return step, objective, nets


def build_trainer(
    method: Method,
    spec: Spec,
    pictures: Data,
    *,
    data: DataConfig,
    train: TrainConfig,
    engine: EngineConfig,
    optimizer: OptimizerConfig,
    schedule: ScheduleConfig,
    roles: Mapping[str, Role] | None = None,
    distributed: DistributedContext | None = None,
    only: Sequence[str] = (),
) -> Trainer:
    """The trainer of a run on `pictures`, with its step and loaders. `roles` are built where they are not given.

    `only` names the phases of a step, where some are left out.
    """
    distributed = distributed or DistributedContext()
    set_threads(engine)
    device, count = resolve_device(engine.device), data.batch * train.accumulate
    _check_one_size(method, pictures, data, accumulate=train.accumulate)
    loader = cache(
        partial(_open_loader, pictures, data, count=count, seed=train.seed, device=device, distributed=distributed)
    )
    roles = roles or build_roles(method, spec, seed=train.seed, colours=pictures.colours)
    step, objective, nets = build_step(
        method,
        spec,
        roles,
        shape=window(data, pictures.a.shapes[0]),
        data=data,
        train=train,
        engine=engine,
        optimizer=optimizer,
        prepare=lambda split: loader(split).finish,
        distributed=distributed,
        only=only,
    )
    averaged = {name: net for name, net in nets.items() if roles[name].averaged}
    return Trainer(
        step,
        {split: loader(split) for split in objective.draws},
        nets=nets,
        ema=EMA(averaged, half_life=train.ema_images, rampup=train.ema_rampup),
        state=objective.state,
        draws=objective.draws,
        schedule=schedule,
        batch_size=count * distributed.world,
        seed=train.seed,
        device=device,
        distributed=distributed,
        swaps_at=getattr(objective, "swaps_at", math.inf),
    )


def _check_one_size(method: Method, pictures: Data, data: DataConfig, *, accumulate: int) -> None:
    shapes = pictures.shapes(data)
    needs = {**method.one_size}
    needs |= {f"train.accumulate={accumulate}": "1"} if accumulate > 1 else {}
    for field, mend in needs.items() if len(shapes) > 1 else ():
        raise ValueError(
            f"{field} needs images of one size, but data.preprocess={data.preprocess} gives {len(shapes)}: "
            f"set {field.partition('=')[0]}={mend} or a preprocess that crops"
        )


def _open_loader(
    pictures: Data,
    data: DataConfig,
    split: str,
    *,
    count: int,
    seed: int,
    device: torch.device,
    distributed: DistributedContext,
) -> PairLoader:
    """The loader of a split, see `Phase`, which gives `count` images of each domain at a time."""
    asked = data.model_copy(update={"batch_size": count})
    how: Any = {"seed": seed, "device": device, "rank": distributed.rank, "ranks": distributed.world}
    whole = PairLoader(pictures.a, pictures.b, asked, annotations=pictures.annotations, **how)
    return whole if split == "train" else whole.half(HALVES.index(split))
