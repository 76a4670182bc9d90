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
from velogan.engine.nonfinite import NonFiniteError
from velogan.observe.log import read_stats
from velogan.observe.progress import Display
from velogan.store.checkpoint import list_checkpoints, load_state, load_weights
from velogan.training import run
from velogan.training.nodes import run as apart
from velogan.training.nodes.node import Given, Report, Task
from velogan.training.nodes.placed import Ask
from velogan.training.nodes.ray import on_nodes
from velogan.training.nodes.run import modules_asked, modules_of_method, placed
from velogan.training.session import Result
from velogan.translate.model import load_translator

Started = Callable[..., Any]


@contextmanager
def in_turn(makes: Mapping[str, Any], **_: Any) -> Iterator[Ask]:
    """All nodes in this process, one after the other."""
    nodes = {name: make() for name, make in makes.items()}
    yield lambda given, task: {name: node.advance(given, task) for name, node in nodes.items()}


@contextmanager
def losing(makes: Mapping[str, Any], *, name: str, at: int, **asked: Any) -> Iterator[Ask]:
    """Nodes under Ray; the one of this name is killed once more than `at` images are seen."""
    with on_nodes(makes, address=None, **asked) as ask:
        killed: list[str] = []

        def losing_one(given: Given, task: Task) -> Mapping[str, Report]:
            reports = ask(given, task)
            if task.until > at and not killed:
                killed.append(reports[name].process)
                os.kill(int(killed[0].rpartition(" ")[2]), signal.SIGKILL)
            return reports

        yield losing_one
        assert killed


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
            {"kind": "cyclegan", "penalty": "r1", "penalty_every": 2},
            {"generator": ("G_A", "G_B"), "penalty": ("D_A", "D_B")},
        ),
    ],
)
def test_phases_that_train_the_same_networks_are_one_module(method, modules, tiny):
    assert {one.name: one.trains for one in modules_of_method(tiny(method))} == modules


@pytest.mark.parametrize(
    "method",
    ["onepair", {"kind": "cyclegan", "gan": "hinge", "augment": ("shift",), "augment_probability": 0.7}],
)
def test_with_an_exchange_after_every_step_nodes_compute_what_one_process_does(method, tiny, tmp_path: Path):
    """Bit for bit: all losses of such a method are functions of the weights from before the step."""
    one, other = (trained(tiny(method, every=every), tmp_path / str(every)) for every in (None, "2 images"))
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
