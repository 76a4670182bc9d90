"""Builds everything from a Config and starts it: the first file to read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from velogan import __version__
from velogan.config import Config, parse_config
from velogan.data.sets.loader import PairLoader, window
from velogan.data.sets.pair import Data, open_data
from velogan.engine.capture import CapturedStep, CudaRecorder
from velogan.engine.config import EngineConfig
from velogan.engine.cudnn import measure_convolutions
from velogan.engine.directions import DirectionRanks
from velogan.engine.ema import EMA
from velogan.engine.loss_scale import LossScale
from velogan.engine.memory import keep_freed_memory
from velogan.engine.optimizers import FUSED, build_optimizers, check_rules, trained
from velogan.engine.ranks import Ranks, joined
from velogan.engine.step import Step
from velogan.engine.streams import Streams
from velogan.engine.trainer import Stepper, Trainer
from velogan.evaluation.samples import Sampler
from velogan.evaluation.validation import Validation
from velogan.methods.base import Role, Views
from velogan.methods.capabilities import Chooses, Remarks, TakesTrained, TrainedGenerator, TrainsByDirection, capability
from velogan.methods.fit import check_sizes, phases_of
from velogan.networks.build import Networks, current
from velogan.networks.generators import GeneratorConfig
from velogan.objectives.base import SPLITS, Objective
from velogan.observe.progress import Display
from velogan.search.recorder import Chosen
from velogan.training.choices import decide, decide_again, for_all, on_this_host
from velogan.training.followers import as_split, check_pictures, follow
from velogan.training.forward import forward_net, forward_nets
from velogan.training.resolve import device_for, resolve_device
from velogan.training.session import Result, Scores, Session
from velogan.training.weights import begin
from velogan.translate.model import load_translator
from velogan.types import Batch, Decision, Direction, Nets

Prepare = Callable[[Batch], Batch]
Scoring = Callable[..., Scores]
Placing = Callable[[Config, Trainer, Path, Data], AbstractContextManager[None]]


def train(
    config: Config,
    run: Path,
    *,
    display: Display,
    origin: Mapping[str, Any],
    scoring: Scoring = Validation,
    placing: Placing | None = None,
) -> Result:
    """Trains `config` in the folder `run`, or continues what is there. ValueError for what the user can mend.

    `origin` holds the `preset` and the `command` for the record; `scoring` makes what scores each checkpoint. Where
    torchrun started several processes, they train it together: the first one keeps the folder, and all get its result.
    Within `placing` others compute the trainer's steps; see `apart.train`.
    """
    if config.train.exchange_every is not None and placing is None:
        raise ValueError("train.exchange_every is for nodes, which `velogan train` alone starts: leave it out here")
    with joined(config.engine.device, lost_after=config.train.lost_after) as ranks:
        session = Session.open(run, config, say=display.say) if ranks.first else None
        about = {"display": display, "origin": origin, "scoring": scoring, "placing": placing}
        return ranks.share(_train(ranks, config, session, **about))


def check_names(config: Config) -> None:
    """Raise `ValueError` for a rule of the section optimizer that names no network that is trained."""
    if config.optimizer.rules:
        check_rules(config.optimizer, trained(phases_of(config.method, config.spec)))


def _train(
    ranks: Ranks,
    config: Config,
    session: Session | None,
    *,
    display: Display,
    origin: Mapping[str, Any],
    scoring: Scoring,
    placing: Placing | None,
) -> Result | None:
    """As `train`. Only the first rank has a session; the others follow it, and know no result."""
    tree, before = ranks.share((session.config.model_dump(), session.engine) if session else None)
    config = parse_config(tree)
    ranks = as_split(ranks, config)
    if before is None:  # before minutes of preparing pictures
        device_for(config.engine)
        check_names(config)
        if session and config.data.crop:
            _set_threads(config.engine)
            if chooser := capability(config.method, Chooses):
                chooser.check_size(config.spec, config.data.crop)
    data = ranks.in_turn(lambda: open_data(config.data, task=display.task, say=display.say))
    check_pictures(ranks, data)
    asked, notes = fit_channels(config, data)
    check_sizes(asked.method, asked.spec, data.shapes(asked.data))
    with session.lock() if session else nullcontext():
        chosen = _decided(ranks, asked, before) if session else None
        engine, picks, why = ranks.share(chosen)
        config = asked.model_copy(update={"engine": on_this_host(ranks, asked.engine, engine)})
        roles = build_roles(config)
        if session and (weights := session.begins_from()) is not None:
            display.say(begin(config.method, config.spec, roles, start=weights))
        trainer = build_trainer(config, data, roles=roles, ranks=ranks)
        if session:
            session.start(
                asked, engine, trainer, roles=roles, data=data, picks=[*notes, *picks], why=why, origin=origin
            )
        trainer.share(session.state if session else None)
        if not session:
            return follow(config, trainer)
        views = averaged_views(config, trainer.ema.nets)
        engine = config.engine
        how: dict[str, Any] = {"data": config.data, "device": engine.device, "bf16": engine.precision == "bf16"}
        grids = None
        if count := config.train.samples:
            grids = Sampler(
                session.folder, data.sources, views, count=count, multiple=config.spec.multiple, log=session.log, **how
            )
        choices = _choices(session, config, trainer, data)
        validation = scoring(config.method, config.spec, data.sources, views, **how)
        with placing(config, trainer, session.folder, data) if placing else nullcontext():
            return session.run(display, grids=grids, validation=validation, choices=choices)


def _choices(session: Session, config: Config, trainer: Trainer, data: Data) -> Chosen | None:
    """What keeps the method's choices, where it makes any."""
    chooser = capability(config.method, Chooses)
    if chooser is None:
        return None
    choice = chooser.choice(trainer.nets, config.spec, trainer.state)
    names = {"a": data.sources.a.name, "b": data.sources.b.name}
    provenance = {"velogan": __version__, "data": names, "config": config.model_dump(mode="json", exclude={"engine"})}
    groups = [config.optimizer.group(role) for role in choice.roles]
    return Chosen(
        session.folder,
        choice,
        epoch=trainer.epoch,
        provenance=provenance,
        rate=max((group["lr"] for kind, group in groups if "adam" in kind), default=None),
        step=config.data.batch_size * config.train.accumulate,
        say=session.say,
    )


def _decided(ranks: Ranks, asked: Config, before: EngineConfig | None) -> tuple[EngineConfig, list[Decision], str]:
    engine, picks, why = decide_again(asked, before) if before else (*decide(asked), "")
    return *for_all(ranks, asked, engine, picks), why


def fit_channels(config: Config, data: Data) -> tuple[Config, list[Decision]]:
    """The configuration with the channels that both domains' pictures have, and what follows from them."""
    channels = {"channels_a": data.a.format.channels, "channels_b": data.b.format.channels}
    config = config.change(data=channels)
    remarks = capability(config.method, Remarks)
    return config, remarks.remarks(config.spec) if remarks else []


def build_roles(config: Config) -> dict[str, Role]:
    """The networks by role, initialised from the seed in the reference's order, on the CPU.

    ValueError where the run that they should start from has none that fit.
    """
    torch.manual_seed(config.train.seed)
    roles = config.method.roles(config.spec, Networks())
    if taker := capability(config.method, TakesTrained):
        taker.take_trained(_nets(roles), _trained)
    return roles


def _trained(run: Path) -> TrainedGenerator:
    found = load_translator(run)
    return TrainedGenerator(found.net, GeneratorConfig.model_validate(current(found.header["config"])))


def _nets(roles: Mapping[str, Role]) -> dict[str, nn.Module]:
    return {name: role.net for name, role in roles.items()}


def averaged_views(config: Config, averages: Nets) -> Views:
    """What sample grids and validation look at: over the weights of `averages`, as fast as training computes."""
    plain = config.engine.model_copy(update={"compile": "off"})  # few pictures, of several shapes
    views = config.method.views(averages, config.spec)
    faster = partial(forward_net, engine=plain)
    generators: dict[Direction, nn.Module] = {way: faster(net) for way, net in views.generators.items()}
    return replace(
        views,
        generators=generators,
        reconstruction=faster(views.reconstruction) if views.reconstruction else None,
    )


def build_step(
    config: Config,
    *,
    shape: tuple[int, int],
    prepare: Callable[[str], Prepare] | None = None,
    roles: Mapping[str, Role] | None = None,
    ranks: Ranks | None = None,
    only: Sequence[str] = (),
) -> tuple[Stepper, Objective, dict[str, nn.Module]]:
    """The step for images of `shape` (H, W), its objective, and the networks by role, on the configured device.

    `prepare` gives the `finish` of a split's loader, where the step is fed from loaders. `roles` are built where they
    are not given. `only` names the phases that run, where some are left out.
    """
    engine, device = config.engine, resolve_device(config.engine.device)
    if device.type == "cpu":
        keep_freed_memory()
    measure_convolutions(device, one_size="crop" in config.data.preprocess)
    roles = roles or build_roles(config)
    nets = {name: net.to(device) for name, net in _nets(roles).items()}
    asked: dict[str, Any] = {"shape": shape, "batched": engine.batched == "on"}
    by_direction = capability(config.method, TrainsByDirection) if isinstance(ranks, DirectionRanks) else None
    if by_direction and isinstance(ranks, DirectionRanks):
        objective = by_direction.one_direction(config.spec, number=ranks.rank, swap=ranks.swap, **asked)
    else:
        objective = config.method.objective(config.spec, **asked)
    objective.state.to(device)
    if engine.layout == "channels_last":
        for module in (*nets.values(), objective.state):
            module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    phases = objective.phases()
    twice = [name for name, role in roles.items() if role.twice_differentiated]
    lean = [name for name, role in roles.items() if role.averaged and engine.checkpoint_activations == "on"]
    fused = engine.mode != "reference"
    optimizers = build_optimizers(config.optimizer, phases=phases, nets=nets, fused=fused)
    frozen_at_a_break = device.type == "cuda" and fused and config.optimizer.kinds <= set(FUSED)
    if only:
        phases = [phase for phase in phases if phase.name in only]
        optimizers = {name: one for name, one in optimizers.items() if name.partition("/")[0] in only}
    step = Step(
        phases,
        nets=nets,
        forward_nets=forward_nets(nets, engine, plain=twice, recomputed=lean),
        optimizers=optimizers,
        autocast={"bf16": torch.bfloat16, "fp16": torch.float16}.get(engine.precision),
        channels_last=engine.layout == "channels_last",
        check_later=frozen_at_a_break and config.train.on_nonfinite == "stop",
        runner=Streams(device) if engine.mode == "streams" else None,
        prepare={split: prepare(split) for split in objective.draws} if prepare else None,
        accumulate=config.train.accumulate,
        scale=LossScale(device) if engine.precision == "fp16" else None,
        ranks=ranks,
    )
    if engine.capture == "on":
        step = CapturedStep(step, state=objective.state, recorder=CudaRecorder(device))
    return step, objective, nets


def build_trainer(
    config: Config,
    data: Data,
    *,
    roles: Mapping[str, Role] | None = None,
    ranks: Ranks | None = None,
    only: Sequence[str] = (),
) -> Trainer:
    """Networks, objective, optimizers, loaders: wired. `roles` are built where they are not given.

    `only` names the phases of a step, where some are left out.
    """
    ranks = ranks or Ranks()
    _set_threads(config.engine)
    device = resolve_device(config.engine.device)
    _check_one_size(config, data)
    shape = window(config.data, data.a.shape(0))
    loader = cache(partial(_open_loader, config, data, device, ranks))
    roles = roles or build_roles(config)
    step, objective, nets = build_step(
        config, shape=shape, prepare=lambda split: loader(split).finish, roles=roles, ranks=ranks, only=only
    )
    averaged = {name: net for name, net in nets.items() if roles[name].averaged}
    return Trainer(
        step,
        {split: loader(split) for split in objective.draws},
        nets=nets,
        ema=EMA(averaged, half_life=config.train.ema_images, rampup=config.train.ema_rampup),
        state=objective.state,
        draws=objective.draws,
        schedule=config.schedule,
        plateau_phase=config.method.plateau_phase,
        batch_size=config.images_per_update * ranks.parts,
        seed=config.train.seed,
        device=device,
        on_nonfinite=config.train.on_nonfinite,
        ranks=ranks,
        owned=getattr(objective, "owned", ()),
        swaps_at=getattr(objective, "swaps_at", math.inf),
    )


def _set_threads(engine: EngineConfig) -> None:
    if engine.threads:
        torch.set_num_threads(engine.threads)


def _check_one_size(config: Config, data: Data) -> None:
    shapes, count = data.shapes(config.data), config.train.accumulate
    needs = {config.method.one_size: 0} | ({f"train.accumulate={count}": 1} if count > 1 else {})
    for field, mend in needs.items() if len(shapes) > 1 else ():
        if field:
            raise ValueError(
                f"{field} needs images of one size, but data.preprocess={config.data.preprocess} gives {len(shapes)}: "
                f"set {field.partition('=')[0]}={mend} or a preprocess that crops"
            )


def _open_loader(config: Config, data: Data, device: torch.device, ranks: Ranks, split: str) -> PairLoader:
    """The loader of a split; see `objectives.base.SPLITS`."""
    assert split in SPLITS, split
    asked = config.data.model_copy(update={"batch_size": config.images_per_update})
    place = {"rank": ranks.part, "ranks": ranks.parts}
    whole = PairLoader(data.a, data.b, asked, seed=config.train.seed, device=device, **place)
    return whole if split == "train" else whole.half(SPLITS.index(split) - 1)
