"""One run whose modules are trained apart, each by a node, with old copies of the others."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from velogan.config import Config, parse_config
from velogan.data.sets.pair import Data, open_data
from velogan.engine.duration import parse_span
from velogan.engine.processes import is_distributed
from velogan.engine.trainer import Trainer
from velogan.methods.fit import phases_of
from velogan.observe.progress import Display
from velogan.scale.connected import require_ray
from velogan.training.nodes.node import FOLDER, Led, Module, Node, modules_of
from velogan.training.nodes.placed import Nodes, Placed
from velogan.training.nodes.ray import on_nodes
from velogan.training.run import train as train_whole
from velogan.training.run import trainer_of
from velogan.training.session import Result

SETTING = "train.exchange_every (--modules)"

Start = Callable[..., AbstractContextManager[Nodes]]
"""Makes nodes by name."""

_COPIES = 6
"""How many times the bytes of all weights are sent at once: by nodes, with averages and moments, and to them."""


def train(
    config: Config,
    run: Path,
    *,
    display: Display,
    origin: Mapping[str, Any],
    address: str | None = None,
    began: float | None = None,
) -> Result:
    """As `run.train`, by a node for each module, of the Ray at `address` or of one that is started here."""
    modules = modules_asked(config)
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    require_ray("scale", "ray", user=SETTING)
    placing = partial(placed, modules=modules, start=partial(on_nodes, address=address), say=display.say)
    return train_whole(config, run, display=display, origin=origin, placing=placing, began=began)


def modules_asked(config: Config) -> list[Module]:
    """The modules that nodes shall train. ValueError where they cannot."""
    if is_distributed():
        raise ValueError(f"{SETTING} places modules on nodes by Ray: start velogan without torchrun")
    modules = modules_of(phases_of(config.method, config.spec))
    if len(modules) == 1:
        raise ValueError(
            f"{SETTING}: method={config.method.kind} has one module here, {modules[0].name}, so there is nothing to "
            "place: leave it out"
        )
    for role in (role for module in modules for role in module.trains):
        schedule = config.schedule.model_copy(update=config.optimizer.group(role)[1]["schedule"])
        if schedule.kind == "plateau":
            raise ValueError(
                f"{SETTING}: schedule.kind=plateau of {role} watches a loss that only one node knows: choose another"
            )
    return modules


@contextmanager
def placed(
    config: Config,
    trainer: Trainer,
    folder: Path,
    data: Data,
    *,
    modules: Sequence[Module],
    start: Start,
    say: Callable[[str], None],
) -> Iterator[None]:
    """Within the context nodes compute the steps of `trainer`, which has what the run in `folder` continues from.

    `start` makes them, as `on_nodes` does. Their own checkpoints are of this job alone, for a node that is lost; where
    nodes do not wait for each other, one that is ahead of the run goes on from its own in the next job, too.
    """
    every, waits = config.train.exchange_every, config.train.exchange_waits
    assert every is not None
    own = folder.resolve() / FOLDER
    if waits or trainer.images == 0:
        shutil.rmtree(own, ignore_errors=True)
    tree, digests = config.model_dump(), {"A": data.a.digest, "B": data.b.digest}
    makes = {one.name: partial(make_node, tree, one, own / one.name, digests) for one in modules}
    cuda, memory = trainer.device.type == "cuda", _COPIES * sum(map(_bytes, trainer.nets.values()))
    named = ", ".join(f"{one.name} ({', '.join(one.trains)})" for one in modules)
    say(f"nodes: {named}; networks are exchanged every {every}{'' if waits else ', and nobody waits'}")
    with start(makes, cuda=cuda, memory=memory) as nodes:
        step = Placed(trainer, modules, nodes, every=parse_span(every), waits=waits, say=say)
        yield
        took = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in step.seconds.items())
        say(f"processor time of the nodes: {took}")


def make_node(
    tree: Mapping[str, Any], module: Module, folder: Path, digests: Mapping[str, str], threads: int | None = None
) -> Node:
    """A node, in its own process, of the configuration `tree`, with so many `threads` where that says nothing."""
    config = parse_config(tree)
    if config.engine.threads is None:
        config = config.model_copy(update={"engine": config.engine.model_copy(update={"threads": threads})})

    def build(led: Led) -> Trainer:
        with Display(quiet=True) as display:
            data = open_data(config.data, task=display.task, say=display.say)
        _check_pictures(data, digests)
        return trainer_of(config, data, ranks=led, only=module.phases)

    return Node(module, build, folder)


def _check_pictures(data: Data, digests: Mapping[str, str]) -> None:
    """ValueError where this host has other pictures."""
    for letter, domain in (("A", data.a), ("B", data.b)):
        if domain.digest != digests[letter]:
            raise ValueError(
                f"data.path (--data): {socket.gethostname()} has other pictures of domain {letter} than the host that "
                "keeps the run folder: give all hosts the same ones"
            )


def _bytes(net: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*net.parameters(), *net.buffers()))
