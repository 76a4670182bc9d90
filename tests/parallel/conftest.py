"""Several processes that train one tiny run together, forked from one that has imported everything."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed import TCPStore

from velogan.store.checkpoint import list_checkpoints, load_state


@dataclass
class Job:
    """The processes of one run, by rank."""

    ask: Callable[[dict], int]
    store: TCPStore
    pids: list[int] = field(default_factory=list)
    said_in: list[Path] = field(default_factory=list)

    def wait(self) -> tuple[list[int], list[str]]:
        """Exit codes by rank (below zero: the signal it died of), and what each said."""
        return [self.ask({"wait": pid}) for pid in self.pids], [path.read_text() for path in self.said_in]

    def send(self, rank: int, number: signal.Signals) -> None:
        """Sends a signal to one rank."""
        os.kill(self.pids[rank], number)


@pytest.fixture(scope="session")
def start(zygote: Callable[[dict], int], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Job]:
    """`start(argv, ranks=2, code="")` begins a command in so many processes, as torchrun would; 1 is alone.

    Each runs the Python `code` before.
    """

    def begin(argv: list[str], *, ranks: int = 2, code: str = "") -> Job:
        folder, store = tmp_path_factory.mktemp("job"), TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        job = Job(zygote, store)
        for rank in range(ranks):
            said = folder / f"{rank}"
            env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "GLOO_SOCKET_IFNAME": "lo"}
            env["TORCHELASTIC_USE_AGENT_STORE"] = "True"
            job.pids.append(zygote({"argv": argv, "said": str(said), "env": env if ranks > 1 else {}, "code": code}))
            job.said_in.append(said)
        return job

    return begin


@pytest.fixture(scope="session")
def flags() -> Callable[..., list[str]]:
    """`flags(run, images=10, every=10, preset="cyclegan", ...)`: a training that takes a moment; more words.

    `command` may be `search`; `data` is a section in place of the built-in set's, its path first.
    """

    def make(
        run: Path,
        *more: str,
        images: int = 10,
        every: int = 10,
        preset: str = "cyclegan",
        command: str = "train",
        data: Mapping[str, Any] | None = None,
        seed: int = 3,
    ) -> list[str]:
        wraps = "inner." if command == "search" else ""
        path, *others = (data or {"path": ["apples2oranges"]}).items()
        more = (*more, *(word for name, value in others for word in (f"--data.{name.replace('_', '-')}", str(value))))
        words = f"""{command} {preset} --data {" ".join(path[1])} --images {images} --image-size 32 --seed {seed} --json
            --out {run} --engine.precision fp32 --engine.kernels plain --discriminator.channels 4
            --train.checkpoint-every {every}i --train.log-every 1i --train.samples 0 --train.logger none
            --train.keep 9 --data.render-count 6 --data.render-test 2 --method.{wraps}pool-size 0
            --generator.channels 4 --generator.blocks 1 --engine.threads 1"""
        return [*words.split(), *more]

    return make


@pytest.fixture(scope="session")
def close() -> Callable[..., None]:
    """Checks that two runs computed the same: weights, averages, and with `moments` Adam's, among them.

    `most` is the most that the difference's norm may be of a tensor's.
    """

    def check(run: Path, other: Path, *, most: float, moments: bool) -> None:
        one, two = _computed(run), _computed(other)
        assert one.keys() == two.keys()
        assert any("exp_avg_sq" in name for name in one) or not moments
        for name, value in one.items():
            assert (two[name].double() - value).norm() <= most * value.double().norm() + 1e-6, name

    return check


def _computed(run: Path) -> dict[str, Tensor]:
    """All weights, their averages, and the state of the optimizers, by name."""
    folder = list_checkpoints(run)[-1]
    found = {f"{file.name} {k}": v for file in folder.glob("[A-Z]*.safetensors") for k, v in load_file(file).items()}
    state, _ = load_state(folder)
    return found | dict(_tensors("", state))


def _tensors(name: str, node: Any) -> list[tuple[str, Tensor]]:
    if isinstance(node, Tensor):
        return [(name, node)]
    items = node.items() if isinstance(node, dict) else ()
    return [one for key, value in items for one in _tensors(f"{name} {key}", value)]
