"""Multi-process training: check that all ranks have the same images, and run the ranks other than 0."""

from __future__ import annotations

from velogan.config import Config
from velogan.data.sets.pair import Data
from velogan.engine.distributed import DistributedContext
from velogan.engine.duration import parse_length, parse_span
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.processes import ReportedByAnotherRank
from velogan.engine.trainer import Hook, Trainer, stop_on_signal


def check_same_images(distributed: DistributedContext, data: Data) -> None:
    """Raise ValueError if a rank has other images than rank 0."""
    first = distributed.broadcast(data.digests)
    for number, changed in enumerate(distributed.all_gather(data.changed(first))):
        if changed:
            raise ValueError(
                f"data.path (--data): {distributed.describe(number)} has other pictures of domain "
                f"{' and '.join(changed)} than {distributed.describe(0)}: give all hosts the same ones"
            )


def run_worker_rank(config: Config, trainer: Trainer) -> None:
    """Train on a rank other than 0: the same steps and hooks as rank 0, whose `Session` gathers its state."""
    train, distributed = config.train, trainer.distributed
    length = parse_length(train.length, images_per_epoch=trainer.images_per_epoch)
    hooks = [Hook(parse_span(train.log_every), lambda _: None)]
    hooks += [Hook(length.spaced(train.sample_every), lambda _: None)] if train.samples else []
    hooks.append(Hook(length.spaced(train.checkpoint_every), lambda _: trainer.state_dict()))
    with stop_on_signal(trainer):
        if distributed.broadcast(False):
            try:
                trainer.run(length, hooks=hooks)
            except NonFiniteError as error:  # the first rank has it too, and knows what to advise
                raise ReportedByAnotherRank(1) from error
        if distributed.broadcast(False):
            trainer.state_dict()
