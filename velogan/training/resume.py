"""Start a run in its folder: from scratch, or from the newest valid checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from torch import nn

from velogan.config import Config, read_config, to_yaml
from velogan.engine.trainer import Trainer
from velogan.files import pluralize, write_text
from velogan.methods.base import Role
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
from velogan.store.record import read_record, write_record
from velogan.training.context import RunContext
from velogan.training.record import add_engine, create_record, find_changed_domains, format_decisions, read_engine
from velogan.training.weights import checkpoint_networks


def start_or_resume(
    context: RunContext, trainer: Trainer, roles: Mapping[str, Role], *, origin: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Load the newest valid checkpoint if there is one; write `config.yaml` and `run.json`.

    Return the trainer's state in the checkpoint; None if the run starts without one.

    roles: the networks of the run
    origin: entries of a new record (see `run.train`)
    """
    folder, print_line = context.folder, context.display.print_line
    record = read_record(folder)
    restore_hidden(folder)
    checkpoint = _find_checkpoint(context)
    state = None
    if checkpoint and not has_only_weights(checkpoint):
        state = _load(checkpoint, trainer, checkpoint_networks(context.config, roles, trainer.ema.nets))
        print_line(f"resuming {folder} at {pluralize(trainer.images, 'image')}")
        _report_world_size_change(context, previous=1 + len(state.get("others", ())))
        _check_images(context, record)
        _report_rate_increase(context, trainer, state)
    if checkpoint is None:
        _archive_orphaned_stats(context)
    is_past_length = _is_already_past_length(context, trainer)
    if not is_past_length:
        write_text(folder / "config.yaml", to_yaml(context.requested))
    is_resumed = state is not None
    if is_resumed and not is_past_length and origin.get("command"):
        record["command"] = origin["command"]  # it repeats the run with its present length
        write_record(folder, record)
    if "data" not in record:
        record = {**create_record(origin, context.data), **record}
    _record_engine(context, trainer, record)
    return state


def _find_checkpoint(context: RunContext) -> Path | None:
    """Return the newest valid checkpoint, if any; hide corrupt newer ones, and the best one if it is corrupt."""
    folder, print_line = context.folder, context.display.print_line
    checkpoint, corrupt = latest_valid_checkpoint(folder)
    best_mark = read_best(folder)
    best = folder / "checkpoints" / best_mark["checkpoint"] if best_mark else None
    if best and (problem := corrupt.get(best) or find_corruption(best)):
        print_line(f"{problem}: the best checkpoint is corrupt; the next scored checkpoint becomes the best")
        corrupt = {**corrupt, best: problem}
    for path, problem in corrupt.items():
        print_line(f"{problem}: checkpoint {path.name} is not used")
        hide_checkpoint(path)
    return checkpoint


def _load(checkpoint: Path, trainer: Trainer, networks: Mapping[str, nn.Module]) -> Mapping[str, Any]:
    """Load the networks, trainer and clock from `checkpoint`; return the trainer's state."""
    state, clock = load_state(checkpoint)
    weights = {name: load_weights(checkpoint / f"{name}.safetensors")[1] for name in networks}
    try:
        for name, net in networks.items():
            net.load_state_dict(weights[name])
        trainer.load_state_dict(state)
        trainer.clock.load_state_dict(clock)
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{checkpoint} does not match this run ({type(error).__name__}: {str(error)[:300]}): restore the "
            "right files, or move it away to resume from the previous checkpoint"
        ) from error
    return state


def _check_images(context: RunContext, record: Mapping[str, Any]) -> None:
    """Report images that changed since the run started. Raises ValueError if the configured folders changed, too."""
    changed = find_changed_domains(record, context.data)
    is_moved = _image_folders(context.requested) != _image_folders(read_config(context.folder))
    if is_moved and (changed or "data" not in record):
        raise ValueError(
            f"data.path (--data): {context.folder} was trained with other images of domain "
            f"{' and '.join(changed) or 'A and B'}: name their folder, or a new --out"
        )
    if changed:
        domains = " and ".join(changed)
        context.display.print_line(f"the images of domain {domains} have changed since this run started")


def _image_folders(config: Config) -> list[Path]:
    data = config.data
    folders = (*data.path, data.masks_a, data.masks_b, data.labels_a, data.labels_b)
    return [Path(folder).expanduser().resolve() for folder in folders if folder is not None]


def _report_rate_increase(context: RunContext, trainer: Trainer, state: Mapping[str, Any]) -> None:
    """Report a learning rate that rises because the length of the run has changed since the checkpoint."""
    length, images = trainer.length, trainer.images
    seconds = trainer.clock.seconds
    if read_config(context.folder).train.length == context.requested.train.length:
        return
    position: Any = {"images": images, "seconds": seconds, "progress": length.progress(images, seconds)}
    position["images_per_epoch"] = length.images_per_epoch
    trainer.schedule.epochs = length.schedule_epochs
    trainer.schedule.apply(length.schedule_epoch(images, seconds), lambda span: span.count(**position))
    saved = [group["lr"] for optimizer in state["optimizers"].values() for group in optimizer["param_groups"]]
    groups = [group for optimizer in trainer.step.optimizers.values() for group in optimizer.param_groups]
    rates = [(saved_rate, float(group["lr"]), group["name"]) for saved_rate, group in zip(saved, groups)]
    saved_rate, rate, name = max(rates, key=lambda row: (row[1] / max(row[0], 1e-12), row[2]))
    if rate > 1.1 * saved_rate:
        context.display.print_line(
            f"learning rate of {name}: {saved_rate:.2g} at the checkpoint, {rate:.2g} now, because the schedule covers "
            f"{length.span}; to train on at a low rate, use a new --out with --start {context.folder} "
            f"--schedule.kind constant --optimizer.lr {saved_rate:.2g}"
        )


def _report_world_size_change(context: RunContext, *, previous: int) -> None:
    """Report that the number of processes has changed since the checkpoint."""
    world_size, images = context.distributed.world_size, context.config.images_per_update
    if world_size != previous:
        pools = "image pools of the other ranks are dropped" if world_size < previous else "new ranks copy image pools"
        context.display.print_line(
            f"the number of processes changes from {previous} to {world_size}: an update has "
            f"{pluralize(world_size * images, 'image')} (before: {previous * images}); {pools}"
        )


def _archive_orphaned_stats(context: RunContext) -> None:
    """Copy the log of a run without checkpoints to an unused name, since training truncates it; report this."""
    file = context.folder / "stats.jsonl"
    if not file.is_file() or not file.stat().st_size:
        return
    archive = next(path for n in count(1) if not (path := file.with_name(f"stats.before-{n}.jsonl")).exists())
    write_text(archive, file.read_text())
    context.display.print_line(
        f"{context.folder} has a log but no checkpoint: starting from scratch; the log is saved as {archive.name}"
    )


def _is_already_past_length(context: RunContext, trainer: Trainer) -> bool:
    """Return whether the run is past its newly requested length, and report it; then the caller keeps the old one."""
    file, length = context.folder / "config.yaml", context.requested.train.length
    total = trainer.length.total
    is_past = total is not None and total < trainer.images
    is_past = is_past and file.is_file() and read_config(file).train.length != length
    if is_past:
        context.display.print_line(
            f"{context.folder} has already seen {pluralize(trainer.images, 'image')}, more than {length}: nothing to "
            "train; a larger --images resumes it"
        )
    return is_past


def _record_engine(context: RunContext, trainer: Trainer, record: Mapping[str, Any]) -> None:
    """Add the engine settings to `record`, write it, and report them, unless they equal the latest recorded ones."""
    engine, previous = context.engine, read_engine(record)
    ignored = {"threads"} if context.requested.engine.threads is None else set[str]()  # then they depend on the machine
    if previous and previous.model_dump(exclude=ignored) == engine.model_dump(exclude=ignored):
        return
    lines = format_decisions(context.decisions)
    if context.engine_change:
        images = pluralize(trainer.images, "image")
        lines.insert(0, f"the engine settings change at {images}: {context.engine_change}")
    for line in lines:
        context.display.print_line(line)
    record = add_engine(
        record,
        engine,
        context.decisions,
        images=trainer.images,
        reason=context.engine_change,
        device=trainer.device,
    )
    write_record(context.folder, record)
