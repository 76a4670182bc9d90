"""One run by several processes: that all have the same pictures, and what the others do of the first one's session."""

from __future__ import annotations

import hashlib

from velogan.config import Config
from velogan.data.sets.pair import Data
from velogan.engine.distributed import DistributedContext
from velogan.engine.duration import parse_length, parse_span
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.processes import ReportedByAnotherRank
from velogan.engine.trainer import Hook, Trainer, stop_on_signal


def check_pictures(distributed: DistributedContext, data: Data) -> None:
    """ValueError where a rank found other pictures than the first one did."""
    others = [one.domain.digest for one in data.beside.values()]
    digests = distributed.gather((data.a.digest, data.b.digest, hashlib.sha256(repr(others).encode()).hexdigest()))
    for number, found in enumerate(digests):
        for letter, mine, first in zip(("A", "B", "A or B, in masks or labels"), found, digests[0]):
            if mine != first:
                raise ValueError(
                    f"data.path (--data): {distributed.describe(number)} has other pictures of domain {letter} than "
                    f"{distributed.describe(0)}: give all hosts the same ones"
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
