"""One run by several processes: that all have the same pictures, and what the others do of the first one's session."""

from __future__ import annotations

import hashlib

import torch

from velogan.config import Config
from velogan.data.sets.pair import Data
from velogan.engine.directions import DirectionRanks
from velogan.engine.duration import parse_length, parse_span
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.processes import ToldElsewhere
from velogan.engine.ranks import Ranks
from velogan.engine.trainer import Hook, Trainer, stop_on_signal
from velogan.methods.capabilities import TrainsByDirection
from velogan.search.method import METHODS


def check_pictures(ranks: Ranks, data: Data) -> None:
    """ValueError where a rank found other pictures than the first one did."""
    others = [one.domain.digest for one in data.beside.values()]
    digests = ranks.gather((data.a.digest, data.b.digest, hashlib.sha256(repr(others).encode()).hexdigest()))
    for number, found in enumerate(digests):
        for letter, mine, first in zip(("A", "B", "A or B, in masks or labels"), found, digests[0]):
            if mine != first:
                raise ValueError(
                    f"data.path (--data): {ranks.named(number)} has other pictures of domain {letter} than "
                    f"{ranks.named(0)}: give all hosts the same ones"
                )


def as_split(ranks: Ranks, config: Config) -> Ranks:
    """The ranks, divided as `train.split` says. ValueError where they or the networks cannot be."""
    if config.train.split == "images":
        ranks.exchanged = torch.bfloat16 if config.train.exchange_precision == "bf16" else torch.float32
        return ranks
    asked, spec = "train.split=directions", config.spec
    if ranks.world != 2:
        raise ValueError(
            f"{asked} is for two processes, and there {'are' if ranks.several else 'is'} {ranks.world}: start with "
            "torchrun --nproc-per-node 2 -m velogan train ..., or set train.split=images"
        )
    if not isinstance(config.method, TrainsByDirection):
        can = " or ".join(kind for kind, method in METHODS.items() if isinstance(method(), TrainsByDirection))
        raise ValueError(
            f"{asked} is for methods with networks of their own for each direction, and method={config.method.kind} "
            f"has none: set method={can}, or train.split=images"
        )
    if any(one.norm == "sync_batch" for one in (*spec.generators.values(), *spec.discriminators.values())):
        raise ValueError(f"{asked} shows a network all images, so norm=sync_batch has nothing to do: set norm=batch")
    if config.train.exchange_precision != "fp32":
        raise ValueError(
            f"{asked} exchanges no gradients of weights, and train.exchange_precision="
            f"{config.train.exchange_precision} is for these: set train.exchange_precision=fp32"
        )
    return DirectionRanks(ranks)


def follow(config: Config, trainer: Trainer) -> None:
    """A rank's part in the session that the first one holds: the same steps, and its state for checkpoints."""
    train, ranks = config.train, trainer.ranks
    hooks = [Hook(parse_span(train.log_every), lambda _: trainer.pace())]
    if train.samples:
        hooks.append(Hook(parse_span(train.sample_every), lambda _: trainer.collect(), dear=True))
    hooks.append(Hook(parse_span(train.checkpoint_every), lambda _: trainer.state_dict(), dear=True))
    with stop_on_signal(trainer):
        if ranks.share(False):
            try:
                trainer.run(parse_length(train.length, epoch=trainer.epoch), hooks=hooks)
            except NonFiniteError as error:  # the first rank has it too, and knows what to advise
                raise ToldElsewhere(1) from error
        if ranks.share(False):
            trainer.state_dict()
