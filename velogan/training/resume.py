"""The start of a training in its run folder: from scratch, or from the newest valid checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from torch import nn

from velogan.config import read_config, write_yaml
from velogan.engine.duration import parse_length
from velogan.engine.trainer import Trainer
from velogan.files import pluralize, write_text
from velogan.store.checkpoint import (
    find_corruption,
    has_only_weights,
    hide_checkpoint,
    latest_valid_checkpoint,
    load_state,
    load_weights,
    read_best,
    restore_hidden,
)
from velogan.store.record import write_record
from velogan.training.context import RunContext
from velogan.training.record import add_engine, create_record, find_changed_domains, format_decisions, read_engine
from velogan.training.run_folder import RunFolder


def start_or_resume(
    folder: RunFolder,
    context: RunContext,
    trainer: Trainer,
    *,
    networks: Mapping[str, nn.Module],
    origin: Mapping[str, Any],
) -> Mapping[str, Any] | None:
    """Load the newest valid checkpoint if there is one; write `config.yaml` and `run.json`.

    Return the trainer's state in the checkpoint, None if the training starts from scratch.

    networks: the networks of the run by the names of their files in a checkpoint
    origin: the `preset` and `command` of the run, and what was `changed` in the preset
    """
    restore_hidden(folder.path)
    checkpoint, damaged = latest_valid_checkpoint(folder.path)
    _set_damaged_aside(folder, damaged)
    state = None
    if checkpoint and not has_only_weights(checkpoint):
        state = _load(checkpoint, trainer, networks)
        folder.print_line(f"continuing {folder.path} at {pluralize(trainer.images, 'image')}")
        _report_world_size_change(folder, context, previous=1 + len(state.get("others", ())))
    if checkpoint is None:
        _archive_orphaned_stats(folder)
    is_longer = _is_already_past_length(folder, context, trainer)
    if not is_longer:
        write_text(folder.path / "config.yaml", write_yaml(context.requested))
    is_resumed = state is not None
    record = dict(folder.record)
    if is_resumed and not is_longer and origin.get("command"):  # the command that repeats the run as long as it is now
        record["command"] = origin["command"]
        write_record(folder.path, record)
    if "data" not in record:
        record = {**create_record(origin, context.data), **record}
    if is_resumed and (changed := find_changed_domains(record, context.data)):
        folder.print_line(
            f"the pictures of domain {' and '.join(changed)} have changed since this run began: continuing with the "
            "new ones"
        )
    _record_engine(folder, context, trainer, record)
    return state


def _set_damaged_aside(folder: RunFolder, damaged: Mapping[Path, str]) -> None:
    """Hide the `damaged` checkpoints, and the best one if it is damaged."""
    marked = read_best(folder.path)
    best = folder.path / "checkpoints" / marked["checkpoint"] if marked else None
    if best and (problem := damaged.get(best) or find_corruption(best)):
        folder.print_line(f"{problem}: it was the best checkpoint, and the next one that scores is taken for the best")
        damaged = {**damaged, best: problem}
    for checkpoint, problem in damaged.items():
        folder.print_line(f"{problem}: checkpoint {checkpoint.name} is not used")
        hide_checkpoint(checkpoint)


def _load(checkpoint: Path, trainer: Trainer, networks: Mapping[str, nn.Module]) -> Mapping[str, Any]:
    """Load networks, trainer and clock; return the trainer's state."""
    state, clock = load_state(checkpoint)
    weights = {name: load_weights(checkpoint / f"{name}.safetensors")[1] for name in networks}
    try:
        for name, net in networks.items():
            net.load_state_dict(weights[name])
        trainer.load_state_dict(state)
        trainer.clock.load_state_dict(clock)
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{checkpoint} holds another state than this run's ({type(error).__name__}: {str(error)[:300]}): put its "
            "own copy there, or move it away to continue from the one before"
        ) from error
    return state


def _report_world_size_change(folder: RunFolder, context: RunContext, *, previous: int) -> None:
    world, images = context.distributed.world_size, context.config.images_per_update
    if world != previous:
        pools = "those of the others are not used" if world < previous else "the new ones with copies"
        folder.print_line(
            f"trained by {world} process{'es' if world > 1 else ''} from here on, before by {previous}: an update is "
            f"of {pluralize(world * images, 'image')}, before of {previous * images}; each goes on with past "
            f"translations of its own, {pools}"
        )


def _archive_orphaned_stats(folder: RunFolder) -> None:
    """Rename the log of a training that has left no checkpoint, and say so."""
    file = folder.path / "stats.jsonl"
    if not file.is_file() or not file.stat().st_size:
        return
    archive = next(path for n in count(1) if not (path := folder.path / f"stats.before-{n}.jsonl").exists())
    write_text(archive, file.read_text())
    folder.print_line(
        f"{folder.path} holds curves, but no checkpoint: beginning anew; these curves are kept in {archive.name}"
    )


def _is_already_past_length(folder: RunFolder, context: RunContext, trainer: Trainer) -> bool:
    """Return True if the run has seen more images than requested, and say so; then its length is kept."""
    file, length = folder.path / "config.yaml", context.requested.train.length
    requested = parse_length(length, images_per_epoch=trainer.images_per_epoch).total
    is_past = requested is not None and requested < trainer.images
    is_past = is_past and file.is_file() and read_config(file).train.length != length
    if is_past:
        folder.print_line(
            f"{folder.path} has seen {pluralize(trainer.images, 'image')} already, more than {length}: nothing is "
            "trained; a larger --images goes on"
        )
    return is_past


def _record_engine(folder: RunFolder, context: RunContext, trainer: Trainer, record: Mapping[str, Any]) -> None:
    """Write the `record` with the engine settings, and report them, unless they are the previous ones."""
    engine, previous = context.engine, read_engine(record)
    free = {"threads"} if context.requested.engine.threads is None else set[str]()  # then they depend on the machine
    if previous and previous.model_dump(exclude=free) == engine.model_dump(exclude=free):
        return
    if context.engine_change:
        images = pluralize(trainer.images, "image")
        folder.print_line(f"the engine settings change at {images}: {context.engine_change}")
    for line in format_decisions(context.decisions):
        folder.print_line(line)
    record = add_engine(
        record,
        engine,
        context.decisions,
        images=trainer.images,
        reason=context.engine_change,
        device=trainer.device,
    )
    write_record(folder.path, record)
