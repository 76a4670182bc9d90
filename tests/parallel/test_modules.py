"""The modules of a method on nodes of their own: what equals one process, what a lost node costs, what is refused."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from velogan.cli import main
from velogan.cli.train import Train, configure_train
from velogan.config import Config
from velogan.engine.ema import EMA
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.trainer import Trainer
from velogan.methods.fit import phases_of
from velogan.observe.log import read_stats
from velogan.observe.progress import Display
from velogan.store.checkpoint import list_checkpoints, load_state, load_weights
from velogan.training import run
from velogan.training.nodes import run as apart
from velogan.training.nodes.node import Given, Report, Task, modules_of
from velogan.training.nodes.placed import Nodes
from velogan.training.nodes.ray import on_nodes
from velogan.training.nodes.run import modules_asked, placed
from velogan.training.session import Result
from velogan.translate.model import load_translator

Started = Callable[..., Any]


class Timed:
    """All nodes in this process; a step of each takes so long. Who is ready first by that clock is heard first."""

    def __init__(self, makes: Mapping[str, Any], takes: Mapping[str, float]):
        self.nodes, self.takes = {name: make() for name, make in makes.items()}, takes
        self.tasks: dict[str, tuple[Given, Task]] = {}
        self.ready: dict[str, float] = {}
        self.seen = dict.fromkeys(self.nodes, 0)
        self.now = 0.0

    def give(self, name: str, given: Given, task: Task) -> None:
        assert name not in self.tasks, "one task at a time"
        self.tasks[name] = given, task
        self.ready[name] = self.now + self.takes.get(name, 1.0) * (task.until - self.seen[name])

    def hear(self) -> tuple[str, Report]:
        name = min(self.tasks, key=lambda one: self.ready[one])
        report = self.nodes[name].advance(*self.tasks.pop(name))
        self.now, self.seen[name] = self.ready[name], report.images
        return name, report


@contextmanager
def in_turn(makes: Mapping[str, Any], *, kind: type[Timed] = Timed, **asked: Any) -> Iterator[Timed]:
    yield kind(makes, asked.get("takes", {}))


class Losing:
    """Nodes of which the one of this name is killed once more than `at` images are seen."""

    def __init__(self, nodes: Nodes, name: str, at: int):
        self.nodes, self.name, self.at, self.until, self.killed = nodes, name, at, 0, ""

    def give(self, name: str, given: Given, task: Task) -> None:
        self.until = task.until
        self.nodes.give(name, given, task)

    def hear(self) -> tuple[str, Report]:
        name, report = self.nodes.hear()
        if name == self.name and self.until > self.at and not self.killed:
            self.killed = report.process
            os.kill(int(self.killed.rpartition(" ")[2]), signal.SIGKILL)
        return name, report


@contextmanager
def losing(makes: Mapping[str, Any], *, name: str, at: int, **asked: Any) -> Iterator[Nodes]:
    with on_nodes(makes, address=None, **asked) as nodes:
        one = Losing(nodes, name, at)
        yield one
        assert one.killed


@pytest.fixture
def tiny(tiny_config: Callable[..., Config]) -> Callable[..., Config]:
    def make(method: Any = "onepair", *, every: str | None = None, images: int = 12, **train: Any) -> Config:
        given = {"length": f"{images} images", "exchange_every": every, "log_every": "4 images", **train}
        return tiny_config(
            method=method,
            train=given,
            data={"batch_size": 2, "render_count": 8, "validation": 0},
            engine={"mode": "reference", "device": "cpu"},
            schedule={"kind": "constant"},
        )

    return make


def trained(config: Config, folder: Path, start: Started = in_turn, said: list[str] | None = None) -> Result:
    say = (said if said is not None else []).append
    placing = partial(placed, modules=modules_asked(config), start=start, say=say)
    with Display(quiet=True) as display:
        asked: Any = {} if config.train.exchange_every is None else {"placing": placing}
        return run.train(config, folder, display=display, origin={}, **asked)


def tensors(name: str, node: Any) -> dict[str, Tensor]:
    """All tensors of a checkpoint's state by name."""
    if isinstance(node, Tensor):
        return {name: node}
    parts = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return {key: value for part, one in parts for key, value in tensors(f"{name} {part}", one).items()}


@pytest.mark.parametrize(
    ("method", "modules"),
    [
        ("onepair", {"autoencoder": ("E", "R"), "translator": ("T_A",), "discriminator": ("D_A",)}),
        (
            {"kind": "cyclegan"},
            {"generator": ("G_A", "G_B"), "discriminator": ("D_A", "D_B")},
        ),
    ],
)
def test_each_phase_is_a_module(method, modules, tiny):
    assert {one.name: one.trains for one in modules_of(phases_of(tiny(method).method, tiny(method).spec))} == modules


@pytest.mark.parametrize(
    "method",
    [
        "onepair",
        {"kind": "cyclegan", "gan": "hinge", "augment": ("shift",), "augment_probability": 0.7},
    ],
)
def test_with_an_exchange_after_every_step_nodes_compute_what_one_process_does(method, tiny, tmp_path: Path):
    """Bit for bit: all losses of such a method are functions of the weights from before the step."""
    configs = [tiny(method, every=every, images=2 * EMA.EVERY) for every in (None, "2 images")]
    one, other = (trained(config, tmp_path / str(config.train.exchange_every)) for config in configs)
    assert other.weights_sha256 == one.weights_sha256
    rows = [read_stats(tmp_path / name) for name in ("None", "2 images")]
    names = [name for name in rows[0][0] if name.startswith(("loss/", "lr/"))]
    assert len(names) > 6
    for mine, theirs in zip(*rows, strict=True):
        assert [mine[name] for name in names] == pytest.approx([theirs[name] for name in names], rel=1e-6)


def test_between_exchanges_only_the_copies_are_old(tiny, tmp_path: Path):
    """The autoencoder needs no other network, so it is what one process trains; the others are not."""
    trained(tiny(), tmp_path / "one")
    trained(tiny(every="6 images"), tmp_path / "apart")
    one, other = (load_state(list_checkpoints(tmp_path / name)[-1])[0]["optimizers"] for name in ("one", "apart"))
    assert one.keys() == other.keys() == {"autoencoder", "translator", "discriminator"}
    for name in one:
        mine, theirs = tensors("", one[name]["state"]), tensors("", other[name]["state"])
        assert mine.keys() == theirs.keys()
        assert all(mine[key].equal(theirs[key]) for key in mine) == (name == "autoencoder"), name


def test_a_run_that_goes_on_from_an_exchange_is_an_unbroken_one(tiny, tmp_path: Path):
    unbroken = trained(tiny(every="6 images"), tmp_path / "unbroken")
    trained(tiny(every="6 images", images=6), tmp_path / "broken")
    again = trained(tiny(every="6 images"), tmp_path / "broken")
    assert again.weights_sha256 == unbroken.weights_sha256


STEPS = {"autoencoder": 0.1, "translator": 1.0, "discriminator": 0.3}
"""How long a step of each module takes: the translator's node is the slowest by far."""


def test_without_waiting_fast_nodes_are_at_their_end_while_the_slow_one_takes_what_is_newest(tiny, tmp_path: Path):
    """Each job trains on, and takes the others' newest weights at the end of its own epochs ("Improving ...")."""
    order: list[tuple[str, int]] = []
    given: dict[int, Tensor] = {}

    class Noting(Timed):
        def give(self, name: str, what: Given, task: Task) -> None:
            if name == "translator":
                given[what.images] = next(iter(what.nets["E"].values()))
            super().give(name, what, task)

        def hear(self) -> tuple[str, Report]:
            name, report = super().hear()
            order.append((name, report.images))
            return name, report

    start = partial(in_turn, kind=Noting, takes=STEPS)
    free = trained(tiny(every="4 images", images=20, exchange_waits=False), tmp_path / "free", start)
    assert (free.finished, free.images_seen) == (True, 20)
    assert order.index(("autoencoder", 20)) < order.index(("translator", 4)) < order.index(("translator", 20))
    assert list(given) == [0, 4, 8, 12, 16]
    assert not given[0].equal(given[4])
    assert given[4].equal(given[16]), "the autoencoder was at its end"
    trained(tiny(images=20), tmp_path / "one")
    ends = [list_checkpoints(tmp_path / name)[-1] for name in ("one", "free")]
    one, other = (tensors("", load_state(end)[0]["optimizers"]["autoencoder"]["state"]) for end in ends)
    assert all(one[name].equal(other[name]) for name in one), "it needs no other network"
    weights, averages = ([load_weights(end / f"G_A{kind}.safetensors")[1] for end in ends] for kind in ("", ".ema"))
    same = [name for name in weights[0] if weights[0][name].equal(weights[1][name])]
    assert same
    assert all(averages[0][name].equal(averages[1][name]) for name in same)


def test_without_waiting_a_run_that_goes_on_trains_no_module_twice(
    tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config, start = tiny(every="4 images", images=24, exchange_waits=False), partial(in_turn, takes=STEPS)
    take_step = Trainer._one_step

    def step_and_stop(trainer: Trainer, batch: Any) -> None:  # nodes' trainers are led, and do not ask
        take_step(trainer, batch)
        trainer.stopping = trainer.images == 8

    monkeypatch.setattr(Trainer, "_one_step", step_and_stop)
    stopped, finished = (trained(config, tmp_path, start) for _ in range(2))
    assert (stopped.finished, stopped.images_seen) == (False, 8)
    assert (finished.finished, finished.images_seen) == (True, 24)
    updates = [
        {
            name: {int(moments["step"]) for moments in found["state"].values()}
            for name, found in load_state(folder)[0]["optimizers"].items()
        }
        for folder in list_checkpoints(tmp_path)
    ]
    assert updates[0] == {"autoencoder": {12}, "translator": {4}, "discriminator": {12}}, "these were at their end"
    assert updates[-1] == {"autoencoder": {12}, "translator": {12}, "discriminator": {12}}


def test_a_number_that_is_not_finite_is_told_with_its_place(tiny, tmp_path: Path):
    config = tiny(every="6 images").change(optimizer={"rules": ("E:kind=sgd,lr=1e38",)})
    with pytest.raises(NonFiniteError) as told:
        trained(config, tmp_path / "run")
    assert re.search(r"step 1 \(2 images seen\), phase autoencoder: .*; first in .*E ", str(told.value)), told.value


@pytest.mark.filterwarnings("ignore:::ray")
def test_a_killed_node_begins_again_from_its_own_checkpoint(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("ray", reason="Ray is not installed: the extra scale")
    root = str(Path(__file__).resolve().parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])))
    config, said = tiny(every="6 images"), list[str]()
    lost = trained(config, tmp_path / "lost", partial(losing, name="translator", at=7), said)
    assert any("node of translator was lost" in line for line in said), said
    assert lost.finished
    trained(config, tmp_path / "whole")
    ends = [list_checkpoints(tmp_path / name)[-1] for name in ("lost", "whole")]
    networks = [{file.name: load_weights(file)[1] for file in end.glob("*_A*.safetensors")} for end in ends]
    mine, theirs = ({**tensors("", load_state(end)[0]), **tensors("", nets)} for end, nets in zip(ends, networks))
    assert len(networks[0]) > 2
    assert mine.keys() == theirs.keys()  # means of losses differ: those of the lost node are of all that it did again
    assert all(mine[name].equal(theirs[name]) for name in mine)
    assert torch.isfinite(load_translator(tmp_path / "lost").net(torch.zeros(1, 3, 32, 32))).all()
    own = {folder.name for folder in (tmp_path / "lost" / "modules").iterdir() if list_checkpoints(folder)}
    assert own == {"autoencoder", "translator", "discriminator"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": {"kind": "onepair", "stage": "autoencoder"}}, "one module here, autoencoder.*leave it out"),
        ({"schedule": {"kind": "plateau"}}, "schedule.kind=plateau of E .* choose another"),
        ({"train": {"exchange_every": "5 %"}}, "neither in images nor in epochs: write '50 images'"),
        ({"optimizer": {"rules": ("T_*:schedule=plateau",)}}, "schedule.kind=plateau of T_A"),
    ],
)
def test_what_cannot_be_placed_is_refused(changes, said, tiny):
    with pytest.raises(ValueError, match=said):
        modules_asked(tiny(every="1 epoch").change(**changes))


def test_without_ray_the_extra_is_named(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with Display(quiet=True) as display, pytest.raises(ValueError, match=r".*pip install -e '\.\[scale\]'"):
        apart.train(tiny(every="1 epoch"), tmp_path / "run", display=display, origin={})
    assert not (tmp_path / "run").exists()


def test_nobody_else_takes_the_setting_for_nothing(tiny, tmp_path: Path):
    with Display(quiet=True) as display, pytest.raises(ValueError, match="which `velogan train` alone starts"):
        run.train(tiny(every="1 epoch"), tmp_path / "run", display=display, origin={})


def test_the_flag_asks_for_an_exchange_every_five_steps(capsys: pytest.CaptureFixture[str]):
    def every(*words: str) -> str | None:
        asked = Train.parse(["onepair", "--data", "d", *words], prog="velogan train", description="")
        return configure_train(asked).train.exchange_every

    assert every("--modules") == "5 images"
    assert every("--modules", "--train.exchange-every", "50i") == "50 images"
    assert main(["train", "onepair", "--data", "d", "--address", "auto"]) == 2
    assert "--address auto is of a Ray for nodes: add --modules" in capsys.readouterr().err
    assert main(["train", "onepair", "--data", "d", "--train.exchange-waits", "False"]) == 2
    assert "--train.exchange-waits False is for nodes: add --modules" in capsys.readouterr().err
