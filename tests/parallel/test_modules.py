"""The phases of a method in worker processes: what equals one process, what a lost worker costs, what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from velogan.cli import main
from velogan.cli.train import Train, configure_train
from velogan.config import Config
from velogan.engine.ema import EMA
from velogan.engine.nonfinite import NonFiniteError
from velogan.observe.log import read_stats
from velogan.observe.progress import Display
from velogan.store.checkpoint import list_checkpoints, load_state, load_weights
from velogan.training import run
from velogan.training.phase_workers.remote_step import ExecuteRequests
from velogan.training.phase_workers.run import distributed_phases, start_actors, train_on_workers
from velogan.training.phase_workers.worker import PhaseWorker, TrainReport, TrainRequest
from velogan.training.session import Result

Started = Callable[..., Any]


@contextmanager
def in_turn(workers: Mapping[str, Any], **_: Any) -> Iterator[ExecuteRequests]:
    """All workers in this process, one after the other."""
    local = {name: PhaseWorker(*arguments) for name, arguments in workers.items()}
    yield lambda requests: {name: local[name].execute(request) for name, request in requests.items()}


@contextmanager
def losing(workers: Mapping[str, Any], *, name: str, at: int, **_: Any) -> Iterator[ExecuteRequests]:
    """As `in_turn`; the process of the worker `name` is replaced by a new one before the first request beyond `at`."""
    local = {role: PhaseWorker(*arguments) for role, arguments in workers.items()}
    lost: list[int] = []

    def execute(requests: Mapping[str, TrainRequest]) -> dict[str, TrainReport]:
        if name in requests and requests[name].target_images > at and not lost:
            lost.append(requests[name].target_images)
            local[name] = PhaseWorker(*workers[name])
        return {role: local[role].execute(request) for role, request in requests.items()}

    yield execute
    assert lost


@contextmanager
def killing(workers: Mapping[str, Any], *, name: str, at: int, **options: Any) -> Iterator[ExecuteRequests]:
    """Workers under Ray; the process of the worker `name` is killed before the first request beyond `at`."""
    import ray

    with start_actors(workers, address=None, **options) as execute:
        killed: list[str] = []

        def kill_first(requests: Mapping[str, TrainRequest]) -> Mapping[str, TrainReport]:
            if requests[name].target_images > at and not killed:
                killed.append(name)
                ray.kill(ray.get_actor(name), no_restart=False)
            return execute(requests)

        yield kill_first
        assert killed


@pytest.fixture
def tiny(tiny_config: Callable[..., Config]) -> Callable[..., Config]:
    def make(method: Any = "onepair", *, every: str | None = None, images: int = 12, **train: Any) -> Config:
        section = {"length": f"{images} images", "exchange_every": every, "log_every": "4 images", **train}
        return tiny_config(
            method=method,
            train=section,
            data={"batch_size": 2, "render_count": 8, "validation": 0},
            engine={"mode": "reference", "device": "cpu"},
            schedule={"kind": "constant"},
        )

    return make


def trained(config: Config, folder: Path, start: Started = in_turn, messages: list[str] | None = None) -> Result:
    print_line = (messages if messages is not None else []).append
    context = partial(train_on_workers, phases=distributed_phases(config), start=start, print_line=print_line)
    with Display(quiet=True) as display:
        options: Any = {} if config.train.exchange_every is None else {"training_context": context}
        return run.train(config, folder, display=display, origin={}, **options)


def tensors(name: str, node: Any) -> dict[str, Tensor]:
    """All tensors of a checkpoint's state by name."""
    if isinstance(node, Tensor):
        return {name: node}
    parts = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return {key: value for part, child in parts for key, value in tensors(f"{name} {part}", child).items()}


def assert_same(first: Path, second: Path) -> None:
    """Two runs have the same networks, averages, optimizers and pools; means of losses depend on the reports."""
    values: list[dict[str, Tensor]] = []
    for end in (list_checkpoints(folder)[-1] for folder in (first, second)):
        nets = {file.name: load_weights(file)[1] for file in end.glob("[A-Z]*.safetensors")}
        values.append({**tensors("", load_state(end)[0]), **tensors("", nets)})
    assert values[0].keys() == values[1].keys()
    assert len(values[0]) > 20
    assert all(value.equal(values[1][name]) for name, value in values[0].items())


@pytest.mark.parametrize(
    "method",
    [
        "onepair",
        {"kind": "cyclegan", "gan": "hinge", "augment": ("shift",), "augment_probability": 0.7},
    ],
)
def test_with_an_exchange_after_every_step_workers_compute_what_one_process_does(method, tiny, tmp_path: Path):
    """Bit for bit: all losses of such a method are functions of the weights from before the step."""
    configs = [tiny(method, every=every, images=2 * EMA.EVERY) for every in (None, "2 images")]
    first, second = (trained(config, tmp_path / str(config.train.exchange_every)) for config in configs)
    assert first.weights_sha256 == second.weights_sha256
    rows = [read_stats(tmp_path / name) for name in ("None", "2 images")]
    names = [name for name in rows[0][0] if name.startswith(("loss/", "lr/"))]
    assert len(names) > 6
    for row, expected in zip(*rows, strict=True):
        assert [row[name] for name in names] == pytest.approx([expected[name] for name in names], rel=1e-6)


def test_between_exchanges_only_copies_are_old(tiny, tmp_path: Path):
    """The autoencoder needs no other network, so it is what one process trains; the others are not."""
    trained(tiny(), tmp_path / "one")
    trained(tiny(every="6 images"), tmp_path / "apart")
    optimizers = tuple(load_state(list_checkpoints(tmp_path / name)[-1])[0]["optimizers"] for name in ("one", "apart"))
    assert optimizers[0].keys() == optimizers[1].keys() == {"autoencoder", "translator", "discriminator"}
    for name in optimizers[0]:
        plain, on_workers = (tensors("", states[name]["state"]) for states in optimizers)
        assert plain.keys() == on_workers.keys()
        assert all(plain[key].equal(on_workers[key]) for key in plain) == (name == "autoencoder"), name


def test_a_run_resumed_from_an_exchange_equals_an_unbroken_one(tiny, tmp_path: Path):
    unbroken = trained(tiny(every="6 images"), tmp_path / "unbroken")
    trained(tiny(every="6 images", images=6), tmp_path / "broken")
    again = trained(tiny(every="6 images"), tmp_path / "broken")
    assert again.weights_sha256 == unbroken.weights_sha256


def test_reports_a_non_finite_value_with_its_place(tiny, tmp_path: Path):
    config = tiny(every="6 images").change(optimizer={"rules": ("E:kind=sgd,lr=1e38",)})
    with pytest.raises(NonFiniteError) as error:
        trained(config, tmp_path / "run")
    assert "step 1 (2 images seen), phase autoencoder: " in str(error.value)


@pytest.mark.parametrize("at", [7, 6, 0], ids=["between exchanges", "at an exchange", "at the start"])
def test_a_lost_worker_restarts_with_the_same_result(at: int, tiny, tmp_path: Path):
    config, messages = tiny(every="6 images"), list[str]()
    trained(config, tmp_path / "lost", partial(losing, name="translator", at=at), messages)
    assert any("worker of translator was lost" in line for line in messages) == (at > 0), messages
    trained(config, tmp_path / "whole")
    assert_same(tmp_path / "lost", tmp_path / "whole")


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:::ray")
def test_a_killed_process_of_ray_is_a_lost_worker(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("ray", reason="Ray is not installed: the extra scale")
    root = str(Path(__file__).resolve().parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])))
    config, messages = tiny(every="6 images"), list[str]()
    lost = trained(config, tmp_path / "lost", partial(killing, name="translator", at=7), messages)
    assert any("worker of translator was lost" in line for line in messages), messages
    assert lost.finished
    trained(config, tmp_path / "whole")
    assert_same(tmp_path / "lost", tmp_path / "whole")


def test_rejects_exchanges_elsewhere_than_in_the_train_command(tiny, tmp_path: Path):
    with Display(quiet=True) as display, pytest.raises(ValueError, match="supported by `velogan train` only"):
        run.train(tiny(every="1 epoch"), tmp_path / "run", display=display, origin={})


def test_the_flag_sets_an_exchange_every_five_steps(capsys: pytest.CaptureFixture[str]):
    def every(*words: str) -> str | None:
        command = Train.parse(["onepair", "--data", "d", *words], prog="velogan train", description="")
        return configure_train(command).train.exchange_every

    assert every("--modules") == "5 images"
    assert every("--modules", "--train.exchange-every", "50i") == "50 images"
    assert main(["train", "onepair", "--data", "d", "--address", "auto"]) == 2
    assert "--address auto has no effect without --modules" in capsys.readouterr().err
