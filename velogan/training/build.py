"""Build a run's networks by role, its step, loaders and trainer, from its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor, nn

from velogan.config import Config
from velogan.data.sets.annotations import DEFAULT_CLASSES, example_colours
from velogan.data.sets.loader import PairLoader, crop_shape
from velogan.data.sets.pair import TrainingData
from velogan.engine.capture import CapturedStep, CudaRecorder
from velogan.engine.device import resolve_device, set_threads
from velogan.engine.distributed import DistributedContext
from velogan.engine.ema import EMA
from velogan.engine.loss_scale import LossScale
from velogan.engine.memory import keep_freed_memory
from velogan.engine.optimizers import FUSED, build_optimizers
from velogan.engine.step import Step, StepOptions
from velogan.engine.streams import StreamRunner
from velogan.engine.trainer import Stepper, Trainer
from velogan.methods.base import InferenceGenerators, Method, Role, Spec
from velogan.methods.image_gan import ImageGAN
from velogan.networks.build import NetworkFactory, build_network
from velogan.objectives.base import HALVES, Objective
from velogan.objectives.classes import SEGMENTER, SemanticConsistencyLoss
from velogan.objectives.masks import MaskLoss
from velogan.training.engine_rules import BATCH_NORMS
from velogan.training.forward import build_forward_net, build_forward_nets
from velogan.types import Batch, Direction, Nets

Prepare = Callable[[Batch], Batch]
"""Turns the loader's output into the batch that a step consumes, such as `PairLoader.preprocess_on_device`."""


def build_roles(method: Method, spec: Spec, *, seed: int, colours: Tensor | None = None) -> dict[str, Role]:
    """Build the networks by role, initialised from `seed` in the reference implementation's order, on the CPU.

    `colours`: `(K, C)`, of the classes that a segmenter predicts (see `Labels`); None: no segmenter. Raises ValueError
    if a segmenter is built and the images of A and B differ in their number of channels.
    """
    torch.manual_seed(seed)
    roles = method.roles(spec, NetworkFactory())
    if colours is not None:
        roles[SEGMENTER] = _build_segmenter(spec, colours)
    return roles


_MAX_SEGMENTER_CHANNELS = 32
"""Maximum base width of the segmenter, which otherwise has the base width of the generator from A to B."""


def _build_segmenter(spec: Spec, colours: Tensor) -> Role:
    spec.check_equal_channels("data.labels_a, data.labels_b: the segmenter gets images of both domains")
    channels = min(spec.generators["a2b"].channels, _MAX_SEGMENTER_CHANNELS)
    header = {"network": "segmenter", "in_channels": spec.channels["A"], "classes": len(colours), "channels": channels}
    return Role(net=build_network(header), header={**header, "colours": colours.int().tolist()})


def build_averaged_generators(config: Config, averages: Nets) -> InferenceGenerators:
    """Build accelerated generators for sample grids and validation from averaged networks, `averages`, by role."""
    engine = config.engine.model_copy(update={"compile": "off"})  # few images, of several shapes
    inference = config.method.inference_generators(averages, config.spec)
    accelerate = partial(build_forward_net, engine=engine)
    generators: dict[Direction, nn.Module] = {name: accelerate(net) for name, net in inference.generators.items()}
    reconstruction = accelerate(inference.reconstruction) if inference.reconstruction else None
    return replace(inference, generators=generators, reconstruction=reconstruction)


def build_step(
    config: Config,
    *,
    shape: tuple[int, int],
    roles: Mapping[str, Role] | None = None,
    classes: int = DEFAULT_CLASSES,
    prepare: Callable[[str], Prepare] | None = None,
    distributed: DistributedContext | None = None,
    active_phases: Sequence[str] = (),
) -> tuple[Stepper, Objective, dict[str, nn.Module]]:
    """Build the training step of a run, its objective, and the networks by role, on the configured device.

    config: a configuration whose engine is resolved
    shape: (H, W) of the images
    roles: the networks; default: new ones, with a segmenter if there are label maps
    classes: number of classes of label maps, for new networks
    prepare: returns, for a split, the function that preprocesses its batches; default: they need no preprocessing
    distributed: context of this rank; default: a single process
    active_phases: names of the phases to run; default: all
    """
    data, engine = config.data, config.engine
    spec = config.spec
    if roles is None:
        colours = example_colours(data, classes)
        roles = build_roles(config.method, spec, seed=config.train.seed, colours=colours)
    device = resolve_device(engine.device)
    if device.type == "cpu":
        keep_freed_memory()
    elif device.type == "cuda":  # cuDNN measures its algorithms once per shape, as in the reference, unless shapes vary
        torch.backends.cudnn.benchmark = bool(data.crop)
    nets = {name: role.net.to(device) for name, role in roles.items()}
    objective = _build_objective(config, shape)
    objective.state.to(device)
    if engine.channels_last:
        for module in (*nets.values(), objective.state):
            module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    recomputed = [name for name, role in roles.items() if role.is_averaged and engine.checkpoint_activations == "on"]
    fused = engine.mode != "reference"
    phases = objective.phases()
    optimizers = build_optimizers(config.optimizer, phases=phases, nets=nets, fused=fused)
    if active_phases:
        phases = [phase for phase in phases if phase.name in active_phases]
        optimizers = {name: value for name, value in optimizers.items() if name.partition("/")[0] in active_phases}
    step = Step(
        phases,
        nets=nets,
        forward_nets=build_forward_nets(nets, engine, recomputed=recomputed),
        optimizers=optimizers,
        prepare={split: prepare(split) for split in objective.num_uniforms} if prepare else None,
        distributed=distributed,
        options=StepOptions(
            autocast={"bf16": torch.bfloat16, "fp16": torch.float16}.get(engine.precision),
            channels_last=engine.channels_last,
            accumulate=config.train.accumulate,
            scale=LossScale(device) if engine.precision == "fp16" else None,
            defer_nonfinite_check=device.type == "cuda" and fused and config.optimizer.kinds <= set(FUSED),
            branch_runner=StreamRunner(device) if engine.mode == "streams" else None,
        ),
    )
    if engine.captures:
        step = CapturedStep(step, state=objective.state, recorder=CudaRecorder(device))
    return step, objective, nets


def _build_objective(config: Config, shape: tuple[int, int]) -> Objective:
    """Build the objective of the method, with losses on masks and label maps if these are configured."""
    method, data = config.method, config.data
    # passes through the same network run as one batch if that is exact: with per-sample norms and images of one size
    batched = config.engine.mode in ("eager", "graph") and "crop" in data.preprocess
    batched = batched and not config.spec.norms & BATCH_NORMS
    objective: Objective = method.objective(config.spec, shape=shape, batched=batched)
    for prefix, wrapper in (("mask_", MaskLoss), ("label_", SemanticConsistencyLoss)):
        if any(name.startswith(prefix) for name in data.annotations):
            assert isinstance(method, ImageGAN)
            objective = wrapper(objective, method.fakes, phase_name="generator")
    return objective


def build_trainer(
    config: Config,
    data: TrainingData,
    *,
    roles: Mapping[str, Role] | None = None,
    distributed: DistributedContext | None = None,
    active_phases: Sequence[str] = (),
) -> Trainer:
    """Build the trainer of a run on `data`, with its loaders and step; see `build_step` for the other arguments."""
    distributed = distributed or DistributedContext()
    set_threads(config.engine)
    _check_one_size(config, data)
    loader = cache(partial(_open_loader, config, data, distributed=distributed))
    roles = roles or build_roles(config.method, config.spec, seed=config.train.seed, colours=data.colours)
    step, objective, nets = build_step(
        config,
        shape=crop_shape(config.data, data.a.shapes[0]),
        roles=roles,
        prepare=lambda split: loader(split).preprocess_on_device,
        distributed=distributed,
        active_phases=active_phases,
    )
    averaged = {name: net for name, net in nets.items() if roles[name].is_averaged}
    return Trainer(
        step,
        {split: loader(split) for split in objective.num_uniforms},
        objective=objective,
        ema=EMA(averaged, half_life=config.train.ema_images, rampup=config.train.ema_rampup),
        schedule=config.schedule,
        images_per_step=config.images_per_update * distributed.world_size,
        seed=config.train.seed,
        distributed=distributed,
    )


def _check_one_size(config: Config, data: TrainingData) -> None:
    shapes, accumulate = data.crop_shapes(config.data), config.train.accumulate
    fields = {**config.method.fixed_size_fields}
    fields |= {f"train.accumulate={accumulate}": "1"} if accumulate > 1 else {}
    if fields and len(shapes) > 1:
        field, supported = next(iter(fields.items()))
        raise ValueError(
            f"{field} needs images of one size, but data.preprocess={config.data.preprocess} gives {len(shapes)} "
            f"sizes: set {field.partition('=')[0]}={supported} or a preprocess that crops"
        )


def _open_loader(config: Config, data: TrainingData, split: str, *, distributed: DistributedContext) -> PairLoader:
    """Open the loader of a split, "train" or one of `HALVES`; a batch has all images of this rank for one update."""
    loader = PairLoader(
        data.a,
        data.b,
        config.data.model_copy(update={"batch_size": config.images_per_update}),
        annotations=data.annotations,
        seed=config.train.seed,
        device=resolve_device(config.engine.device),
        rank=distributed.rank,
        ranks=distributed.world_size,
    )
    return loader if split == "train" else loader.random_half(HALVES.index(split))
