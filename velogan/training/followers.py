"""One run by several processes: that all have the same pictures, and what the others do of the first one's session."""

from __future__ import annotations

from velogan.config import Config
from velogan.data.sets.pair import Data
from velogan.engine.distributed import DistributedContext
from velogan.engine.duration import parse_length, parse_span
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.processes import ReportedByAnotherRank
from velogan.engine.trainer import Hook, Trainer, stop_on_signal


def check_pictures(distributed: DistributedContext, data: Data) -> None:
    """Raise ValueError if a rank found other images than the first one did."""
    first = distributed.broadcast(data.digests)
    for number, changed in enumerate(distributed.gather(data.changed(first))):
        if changed:
            raise ValueError(
                f"data.path (--data): {distributed.describe(number)} has other pictures of domain "
                f"{' and '.join(changed)} than {distributed.describe(0)}: give all hosts the same ones"
            )


def follow(config: Config, trainer: Trainer) -> None:
    """A rank's part in the session that the first one holds: the same steps, and its state for checkpoints."""
    train, distributed = config.train, trainer.distributed
    length = parse_length(train.length, epoch=trainer.epoch)
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
