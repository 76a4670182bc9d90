"""A training from start to end: the first file to read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from velogan import __version__
from velogan.config import Config, check_rules_match, fit_channels, parse_config
from velogan.data.sets.pair import Data, open_data
from velogan.engine.device import device_for
from velogan.engine.distributed import DistributedContext, init_distributed
from velogan.engine.duration import parse_length
from velogan.engine.trainer import Trainer
from velogan.evaluation.samples import Sampler
from velogan.evaluation.validation import Validation
from velogan.files import duration
from velogan.methods.capabilities import ArchitectureSearch, capability
from velogan.methods.fit import check_sizes
from velogan.observe.progress import Display
from velogan.search.recorder import ArchitectureRecorder
from velogan.store.lock import locked
from velogan.training.batch import with_batch
from velogan.training.build import averaged_views, build_roles, build_trainer, load_pretrained
from velogan.training.choices import decide, on_this_host, resume
from velogan.training.followers import check_pictures, follow
from velogan.training.session import Result, Session
from velogan.training.weights import begin, starting

Scoring = Callable[..., Validation]
Placing = Callable[[Config, Trainer, Path, Data], AbstractContextManager[None]]


def train(
    config: Config,
    run: Path,
    *,
    display: Display,
    origin: Mapping[str, Any],
    scoring: Scoring = Validation,
    placing: Placing | None = None,
    began: float | None = None,
) -> Result:
    """Trains `config` in the folder `run`, or continues what is there. ValueError for what the user can mend.

    `origin` holds the `preset` and the `command` for the record; `scoring` makes what scores each checkpoint. Where
    torchrun started several processes, they train it together: the first one keeps the folder, and all get its result.
    Within `placing` others compute the trainer's steps; see `nodes.train`. A length in minutes counts from `began`, by
    `time.monotonic`, or from this call.
    """
    began = time.monotonic() if began is None else began
    if config.train.exchange_every is not None and placing is None:
        raise ValueError("train.exchange_every is for nodes, which `velogan train` alone starts: leave it out here")
    with init_distributed(config.engine.device, process_timeout=config.train.process_timeout) as distributed:
        session = Session.open(run, config, say=display.say) if distributed.is_main_process else None
        about = {"display": display, "origin": origin, "scoring": scoring, "placing": placing, "began": began}
        return distributed.broadcast(_train(distributed, config, session, **about))


def _train(
    distributed: DistributedContext,
    config: Config,
    session: Session | None,
    *,
    display: Display,
    origin: Mapping[str, Any],
    scoring: Scoring,
    placing: Placing | None,
    began: float,
) -> Result | None:
    """As `train`. Only the first rank has a session; the others follow it, and know no result."""
    tree, before = distributed.broadcast((session.config.model_dump(), session.engine) if session else None)
    config = parse_config(tree)
    distributed.gradient_dtype = torch.bfloat16 if config.train.exchange_precision == "bf16" else torch.float32
    if before is None:  # before minutes of preparing pictures
        device_for(config.engine)
        check_rules_match(config)
    start = session.begins_from() if session else None
    weights = starting(start) if start else {}
    opens = time.monotonic()
    data = distributed.main_process_first(lambda: open_data(config.data, task=display.task, say=display.say))
    prepared = time.monotonic() - opens
    check_pictures(distributed, data)
    asked, notes = fit_channels(config, *data.channels)
    check_sizes(asked.method, asked.spec, data.shapes(asked.data))
    asked, batch = with_batch(asked, data, distributed)
    with locked(session.folder) if session else nullcontext():
        chosen = None
        if session:
            again = resume(asked, before, processes=distributed.world) if before else None
            chosen = again or (*decide(asked, processes=distributed.world), "")
        engine, decisions, why = distributed.broadcast(chosen)
        config = asked.model_copy(update={"engine": on_this_host(distributed, asked.engine, engine)})
        roles = build_roles(config.method, config.spec, seed=config.train.seed, colours=data.colours)
        if start:
            display.say(begin(config.method, config.spec, roles, found=weights, start=start))
        if session and session.begins_anew:
            load_pretrained(config.method, roles)  # what `method.start` holds stays, whatever else begins from weights
        trainer = build_trainer(config, data, roles=roles, distributed=distributed)
        length = parse_length(config.train.length, epoch=trainer.epoch)
        trainer.schedule.check(length)
        if session:
            session.start(
                asked,
                engine,
                trainer,
                roles=roles,
                data=data,
                decisions=[*notes, *batch, *decisions],
                why=why,
                origin=origin,
            )
        trainer.share(session.state if session else None)
        if length.seconds is not None:
            trainer.clock.start(ago=time.monotonic() - began - prepared)
            display.say(_until(length.seconds - trainer.clock.seconds, prepared))
        if not session:
            return follow(config, trainer)
        grids, validation = _watching(session, config, trainer, data, scoring)
        architecture = _recorder(session, config, trainer, data)
        with placing(config, trainer, session.folder, data) if placing else nullcontext():
            return session.run(display, grids=grids, validation=validation, architecture=architecture)


def _until(left: float, prepared: float) -> str:
    """What is said before a run in minutes, of the seconds that are left of it."""
    aside = f"; the {duration(prepared)} of preparing pictures do not count" if prepared >= 1 else ""
    return f"ends in {duration(max(left, 0.0))}, the last checkpoint and page included{aside}"


def _watching(
    session: Session, config: Config, trainer: Trainer, data: Data, scoring: Scoring
) -> tuple[Sampler | None, Validation]:
    """What draws sample grids, unless they are off, and what scores checkpoints: with averaged weights."""
    engine, spec = config.engine, config.spec
    views = averaged_views(config, trainer.ema.nets)
    how: dict[str, Any] = {"data": config.data, "device": engine.device, "bf16": engine.precision == "bf16"}
    grids = None
    if count := config.train.samples:
        chosen = {"count": count, "multiple": spec.multiple}
        grids = Sampler(session.folder, data.sources, views, **chosen, log=session.log, **how)
    return grids, scoring(config.method, spec, data.sources, views, **how)


def _recorder(session: Session, config: Config, trainer: Trainer, data: Data) -> ArchitectureRecorder | None:
    """Return what records the architecture that the method searches for, or None if it searches for none."""
    search = capability(config.method, ArchitectureSearch)
    if search is None:
        return None
    names = {"a": data.sources.a.name, "b": data.sources.b.name}
    return ArchitectureRecorder(
        session.folder,
        shares=partial(search.shares, trainer.nets, config.spec),
        genotype=partial(search.genotype, trainer.nets, config.spec),
        provenance={
            "velogan": __version__,
            "data": names,
            "config": config.model_dump(mode="json", exclude={"engine"}),
        },
    )
