"""A training from start to end: the first file to read.

`train` is called by every process. Each prepares the run and builds its trainer; then rank 0 runs a `Session`, which
keeps the run folder, and the others run `run_worker_rank`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from velogan.config import Config, check_rules_match, fit_to_data, parse_config
from velogan.data.sets.pair import Data, open_data
from velogan.engine.device import device_for
from velogan.engine.distributed import DistributedContext, init_distributed
from velogan.engine.duration import parse_length
from velogan.engine.trainer import Trainer
from velogan.evaluation.samples import Sampler
from velogan.evaluation.validation import Validation
from velogan.files import __version__, duration
from velogan.methods.base import Role
from velogan.methods.capabilities import ArchitectureSearch, capability
from velogan.observe.log import Log
from velogan.observe.progress import Display
from velogan.search.recorder import ArchitectureRecorder
from velogan.store.lock import lock_folder
from velogan.training.batch_size import resolve_auto_batch_size
from velogan.training.build import averaged_views, build_roles, build_trainer, load_pretrained
from velogan.training.context import RunContext
from velogan.training.engine_settings import assign_threads, resolve_engine, resolve_engine_on_resume
from velogan.training.resume import start_or_resume
from velogan.training.run_folder import RunFolder
from velogan.training.session import Result, Session
from velogan.training.weights import checkpoint_networks, find_initial_weights, load_initial_weights
from velogan.training.worker_ranks import check_same_images, run_worker_rank

BuildValidation = Callable[..., Validation]
"""Builds what scores checkpoints, from the arguments of `Validation`."""

TrainingContext = Callable[[Config, Trainer, Path, Data], AbstractContextManager[None]]
"""A context that is entered for the steps alone, for example so that other processes compute them: `nodes.run`."""


def train(
    config: Config,
    run: Path,
    *,
    display: Display,
    origin: Mapping[str, Any],
    build_validation: BuildValidation = Validation,
    training_context: TrainingContext | None = None,
    started_at: float | None = None,
) -> Result:
    """Train `config` in the folder `run`, or resume the run found there.

    If torchrun started several processes, they train the run together: rank 0 keeps the folder, and all return its
    result. Raises ValueError for any error that the user can fix.

    origin: the `preset` and `command` for the record, and what was `changed` in the preset
    started_at: when a length in minutes starts, by `time.monotonic`; default: now
    """
    started_at = time.monotonic() if started_at is None else started_at
    if config.train.exchange_every is not None and training_context is None:
        raise ValueError("train.exchange_every is for nodes, which `velogan train` alone starts: leave it out here")
    with init_distributed(config.engine.device, process_timeout=config.train.process_timeout) as distributed:
        result = None
        if distributed.is_main_process:
            result = _run_main_process(
                RunFolder.open(run, config, print_line=display.print_line),
                distributed,
                display=display,
                origin=origin,
                build_validation=build_validation,
                training_context=training_context,
                started_at=started_at,
            )
        else:
            _run_worker(distributed, display, started_at)
        return distributed.broadcast(result)


def _run_main_process(
    folder: RunFolder,
    distributed: DistributedContext,
    *,
    display: Display,
    origin: Mapping[str, Any],
    build_validation: BuildValidation,
    training_context: TrainingContext | None,
    started_at: float,
) -> Result:
    """Train on rank 0."""
    initial = folder.initial_weights_path
    weights = find_initial_weights(initial) if initial else {}
    context = prepare_run(distributed, display, folder)
    with lock_folder(folder.path):
        roles = _build_roles(context)
        if initial:
            display.print_line(load_initial_weights(context.config, roles, weights=weights, path=initial))
        if folder.is_fresh_start:
            load_pretrained(context.config.method, roles)  # after the initial weights, so that these do not replace it
        trainer = build_run(context, roles)
        networks = checkpoint_networks(context.config, roles, trainer.ema.nets)
        state = start_or_resume(folder, context, trainer, networks=networks, origin=origin)
        trainer.broadcast_initial_state(state)
        _start_clock(trainer, context, started_at, display)
        log = Log(folder.path, logger=context.config.train.logger, print_line=display.print_line)
        log.truncate(trainer.images)
        sampler, validation = _build_sampler_and_validation(folder.path, context, trainer, log, build_validation)
        session = Session(folder, context, trainer, roles, log=log, display=display, validation=validation)
        steps = nullcontext()
        if training_context:
            steps = training_context(context.config, trainer, folder.path, context.data)
        with steps:
            return session.run(sampler=sampler, architecture=_build_recorder(folder.path, context, trainer))


def _run_worker(distributed: DistributedContext, display: Display, started_at: float) -> None:
    """Train on a rank other than 0."""
    context = prepare_run(distributed, display)
    trainer = build_run(context, _build_roles(context))
    trainer.broadcast_initial_state(None)
    _start_clock(trainer, context, started_at, display)
    run_worker_rank(context.config, trainer)


def prepare_run(distributed: DistributedContext, display: Display, folder: RunFolder | None = None) -> RunContext:
    """Open the training images and resolve the configuration. Only rank 0 has a `folder`; it broadcasts the choices."""
    opened = (folder.config.model_dump(), folder.previous_engine) if folder else None
    tree, previous_engine = distributed.broadcast(opened)
    config = parse_config(tree)
    if previous_engine is None:  # before minutes of preparing images
        device_for(config.engine)
        check_rules_match(config)
    preparation_started_at = time.monotonic()
    data = distributed.main_process_first(
        lambda: open_data(config.data, task=display.task, print_line=display.print_line)
    )
    preparation_s = time.monotonic() - preparation_started_at
    check_same_images(distributed, data)
    requested, channel_decisions = fit_to_data(config, data.channels, data.shapes(config.data))
    requested, batch_decisions = resolve_auto_batch_size(requested, data, distributed)
    resolved = None
    if folder and previous_engine:
        resolved = resolve_engine_on_resume(requested, previous_engine, processes=distributed.world_size)
    elif folder:
        resolved = (*resolve_engine(requested, processes=distributed.world_size), "")
    engine, engine_decisions, engine_change = distributed.broadcast(resolved)
    return RunContext(
        distributed=distributed,
        requested=requested,
        config=requested.model_copy(update={"engine": assign_threads(distributed, requested.engine, engine)}),
        engine=engine,
        decisions=[*channel_decisions, *batch_decisions, *engine_decisions],
        engine_change=engine_change,
        data=data,
        preparation_s=preparation_s,
    )


def _build_roles(context: RunContext) -> dict[str, Role]:
    config = context.config
    return build_roles(config.method, config.spec, seed=config.train.seed, colours=context.data.colours)


def build_run(context: RunContext, roles: Mapping[str, Role]) -> Trainer:
    """Build the trainer of a prepared run."""
    return build_trainer(context.config, context.data, roles=roles, distributed=context.distributed)


def _start_clock(trainer: Trainer, context: RunContext, started_at: float, display: Display) -> None:
    """Count the time since `started_at` in a run in minutes, but for the preparation of images."""
    length = parse_length(context.config.train.length, images_per_epoch=trainer.images_per_epoch)
    if length.seconds is None:
        return
    prepared = context.preparation_s
    trainer.clock.start(ago=time.monotonic() - started_at - prepared)
    excluded = f"; the {duration(prepared)} of preparing pictures do not count" if prepared >= 1 else ""
    left = duration(max(length.seconds - trainer.clock.seconds, 0.0))
    display.print_line(f"ends in {left}, the last checkpoint and page included{excluded}")


def _build_sampler_and_validation(
    folder: Path, context: RunContext, trainer: Trainer, log: Log, build_validation: BuildValidation
) -> tuple[Sampler | None, Validation]:
    """Build the writer of sample grids (None if disabled) and the scorer of checkpoints; both use the EMA weights."""
    config, sources = context.config, context.data.sources
    views = averaged_views(config, trainer.ema.nets)
    options: dict[str, Any] = {"data": config.data, "device": config.engine.device}
    options["bf16"] = config.engine.precision == "bf16"
    sampler = None
    if count := config.train.samples:
        sampler = Sampler(folder, sources, views, count=count, multiple=config.spec.multiple, log=log, **options)
    return sampler, build_validation(config.method, config.spec, sources, views, **options)


def _build_recorder(folder: Path, context: RunContext, trainer: Trainer) -> ArchitectureRecorder | None:
    """Return the recorder of the architecture that the method searches for, or None if it searches for none."""
    config, sources = context.config, context.data.sources
    search = capability(config.method, ArchitectureSearch)
    if search is None:
        return None
    return ArchitectureRecorder(
        folder,
        shares=partial(search.shares, trainer.nets, config.spec),
        genotype=partial(search.genotype, trainer.nets, config.spec),
        provenance={
            "velogan": __version__,
            "data": {"a": sources.a.name, "b": sources.b.name},
            "config": config.model_dump(mode="json", exclude={"engine"}),
        },
    )
