"""Run training from start to end: the first file to read.

Every process calls `train`, prepares the run and builds its trainer. Then rank 0 runs a `Session`, which writes the
run folder, and the other ranks call `run_worker_rank`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from velogan.config import Config, check_rules_match, fit_to_data
from velogan.data.sets.pair import TrainingData, open_data
from velogan.engine.config import EngineConfig
from velogan.engine.device import select_device
from velogan.engine.distributed import DistributedContext, init_distributed
from velogan.engine.duration import parse_length
from velogan.engine.trainer import Trainer
from velogan.evaluation.samples import GridWriter
from velogan.evaluation.validation import Validation
from velogan.files import __version__, format_duration
from velogan.methods.base import Role
from velogan.observe.log import Log
from velogan.observe.progress import Display
from velogan.search.history import ArchitectureRecorder
from velogan.search.method import SearchMethod
from velogan.store.lock import lock_folder
from velogan.training.batch_size import resolve_auto_batch_size
from velogan.training.build import build_averaged_generators, build_roles, build_trainer
from velogan.training.context import RunContext
from velogan.training.engine_settings import assign_threads, resolve_engine, resolve_engine_on_resume
from velogan.training.resume import start_or_resume
from velogan.training.run_folder import initial_weights_path, open_run
from velogan.training.session import Result, Session
from velogan.training.weights import load_initial_weights, read_initial_weights
from velogan.training.worker_ranks import check_same_images, run_worker_rank

BuildValidation = Callable[..., Validation]
"""Builds a `Validation`, which scores checkpoints, from the arguments of its constructor."""

TrainingContext = Callable[[Config, Trainer, Path, TrainingData], AbstractContextManager[None]]
"""Returns, from (config, trainer, run folder, data), the context manager within which the steps run."""


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
    """Train a new run with `config` in the folder `run`, or resume the run in that folder.

    If torchrun started several processes, they train the run together: rank 0 writes the folder, and all return its
    result. Raises ValueError for any error that the user can fix.

    origin: entries of the record: `preset`, `command` and `changed` (overridden fields, with the preset's values)
    training_context: returns the context in which the steps run; default: none
    started_at: value of `time.monotonic()` from which a length in minutes counts; default: now
    """
    started_at = time.monotonic() if started_at is None else started_at
    if config.train.exchange_every is not None and training_context is None:
        raise ValueError("train.exchange_every is supported by `velogan train` only: remove it")
    with init_distributed(config.engine.device, process_timeout=config.train.process_timeout) as distributed:
        opened = open_run(run, config) if distributed.is_main_process else None
        requested, previous_engine = distributed.broadcast(opened)
        context = prepare_run(requested, previous_engine, run, display=display, distributed=distributed)
        result = None
        if distributed.is_main_process:
            with lock_folder(run):
                result = _run_main_process(context, origin, build_validation, training_context, started_at)
        else:
            trainer, _ = build_run(context)
            trainer.broadcast_initial_state(None)
            _start_clock(context, trainer, started_at)
            run_worker_rank(context.config.train, trainer)
        return distributed.broadcast(result)


def _run_main_process(
    context: RunContext,
    origin: Mapping[str, Any],
    build_validation: BuildValidation,
    training_context: TrainingContext | None,
    started_at: float,
) -> Result:
    """Train on rank 0; the caller has locked the run folder."""
    config, folder = context.config, context.folder
    sources = context.data.sources
    trainer, roles = build_run(context)
    trainer.broadcast_initial_state(start_or_resume(context, trainer, roles, origin=origin))
    _start_clock(context, trainer, started_at)
    log = Log(folder, logger=config.train.logger, print_line=context.display.print_line)
    log.truncate(trainer.images)
    views = build_averaged_generators(config, trainer.ema.nets)
    sampler = GridWriter(config, sources, views, folder=folder / "samples", log=log) if config.train.samples else None
    session = Session(context, trainer, roles, log=log, validation=build_validation(config, sources, views))
    with training_context(config, trainer, folder, context.data) if training_context else nullcontext():
        return session.run(sampler=sampler, architecture=_build_recorder(context, trainer))


def prepare_run(
    requested: Config,
    previous_engine: EngineConfig | None,
    run: Path,
    *,
    display: Display,
    distributed: DistributedContext,
) -> RunContext:
    """Open the images, and resolve the configuration to the same values on all ranks, except for threads.

    previous_engine: the latest engine settings of the run to resume; None for a new run
    """
    initial = initial_weights_path(run, requested) if distributed.is_main_process else None
    initial_weights = read_initial_weights(initial) if initial else {}
    if previous_engine is None:  # fail before images are prepared
        select_device(requested.engine)
        check_rules_match(requested)
    started_at = time.monotonic()
    data = distributed.main_process_first(
        lambda: open_data(requested.data, task=display.task, print_line=display.print_line)
    )
    preparation_s = time.monotonic() - started_at
    check_same_images(distributed, data)
    requested, channel_decisions = fit_to_data(requested, data.channels, data.crop_shapes(requested.data))
    requested, batch_decisions = resolve_auto_batch_size(requested, data, distributed)
    resolved = None
    if distributed.is_main_process and previous_engine:
        resolved = resolve_engine_on_resume(requested, previous_engine, processes=distributed.world_size)
    elif distributed.is_main_process:
        resolved = (*resolve_engine(requested, processes=distributed.world_size), "")
    engine, engine_decisions, engine_change = distributed.broadcast(resolved)
    return RunContext(
        folder=run,
        display=display,
        distributed=distributed,
        requested=requested,
        config=requested.model_copy(update={"engine": assign_threads(distributed, requested.engine, engine)}),
        engine=engine,
        decisions=[*channel_decisions, *batch_decisions, *engine_decisions],
        engine_change=engine_change,
        data=data,
        preparation_s=preparation_s,
        initial_weights=initial_weights,
    )


def build_run(context: RunContext) -> tuple[Trainer, dict[str, Role]]:
    """Build the trainer of a prepared run, and its networks by role, with the initial weights of a new run, if any.

    Raises ValueError if the initial weights do not fit, or if the run's length is a percentage.
    """
    config, folder = context.config, context.folder
    roles = build_roles(config.method, config.spec, seed=config.train.seed, colours=context.data.colours)
    if context.distributed.is_main_process and (path := initial_weights_path(folder, config)):
        line = load_initial_weights(config, roles, weights=context.initial_weights, path=path)
        context.display.print_line(line)
    trainer = build_trainer(config, context.data, roles=roles, distributed=context.distributed)
    trainer.set_length(parse_length(config.train.length, images_per_epoch=trainer.images_per_epoch))
    return trainer, roles


def _start_clock(context: RunContext, trainer: Trainer, started_at: float) -> None:
    """Start the clock at `started_at` if the length is in minutes; the time for preparing images does not count."""
    length_s, preparation_s = trainer.length.seconds, context.preparation_s
    if length_s is None:
        return
    trainer.clock.start(elapsed=time.monotonic() - started_at - preparation_s)
    note = f"; the {format_duration(preparation_s)} of preparing images do not count" if preparation_s >= 1 else ""
    left = format_duration(max(length_s - trainer.clock.seconds, 0.0))
    context.display.print_line(f"ends in {left}, the last checkpoint and page included{note}")


def _build_recorder(context: RunContext, trainer: Trainer) -> ArchitectureRecorder | None:
    """Return the recorder of the architecture that the method searches for, or None if it searches for none."""
    config, sources = context.config, context.data.sources
    method = config.method
    if not isinstance(method, SearchMethod):
        return None
    return ArchitectureRecorder(
        context.folder,
        shares=partial(method.shares, trainer.nets, config.spec),
        genotype=partial(method.genotype, trainer.nets, config.spec),
        provenance={
            "velogan": __version__,
            "data": {"a": sources.a.name, "b": sources.b.name},
            "config": config.model_dump(mode="json", exclude={"engine"}),
        },
    )
