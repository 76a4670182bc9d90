"""The mean over ranks, with the exchange played; `tests/parallel/` has real ones."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from velogan.engine import heartbeat
from velogan.engine.distributed import DistributedContext, init_distributed


def _weights() -> list[nn.Parameter]:
    layers = [torch.ones(2, 3, 3, 3).contiguous(memory_format=torch.channels_last), torch.ones(4), torch.ones(5)]
    return [nn.Parameter(layer) for layer in layers]


def test_gradients_and_losses_become_means_and_what_all_lack_stays_missing(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    mine, theirs, sent = _weights(), _weights(), []
    mine[0].grad, theirs[0].grad = torch.randn(2, 3, 3, 3), torch.randn(2, 3, 3, 3)  # laid out another way
    theirs[1].grad = torch.randn(4)
    expected = (mine[0].grad + theirs[0].grad) / 2
    monkeypatch.setattr("velogan.engine.distributed.dist.all_reduce", sent.append)
    DistributedContext(1, 2).all_reduce_gradients(theirs, {"total": torch.tensor(3.0)})

    monkeypatch.setattr("velogan.engine.distributed.dist.all_reduce", lambda flat: flat.add_(sent[0]))
    means = DistributedContext(0, 2).all_reduce_gradients(mine, {"total": torch.tensor(1.0)})
    grads: list[Tensor | None] = [weight.grad for weight in mine]
    torch.testing.assert_close(grads[0], expected)
    assert mine[0].grad.stride() == mine[0].stride()
    assert grads[2] is None
    assert means == {"total": 2.0}


@pytest.mark.parametrize("broken", [torch.inf, torch.nan])
def test_a_broken_number_breaks_the_mean_and_large_ones_do_not(broken: float, monkeypatch: pytest.MonkeyPatch):
    for value, finite in ((broken, False), (torch.finfo(torch.float32).max, True)):
        weight = nn.Parameter(torch.zeros(1))
        weight.grad = torch.tensor([value])
        monkeypatch.setattr("velogan.engine.distributed.dist.all_reduce", lambda flat: flat.add_(flat.clone()))
        DistributedContext(0, 2).all_reduce_gradients([weight], {"total": torch.tensor(1.0)})
        assert bool(weight.grad.isfinite().all()) == finite


def test_an_environment_without_torchrun_is_one_rank_and_half_of_one_is_refused(monkeypatch: pytest.MonkeyPatch):
    with init_distributed("cpu", process_timeout=60) as distributed:
        assert (distributed.rank, distributed.world_size, distributed.is_main_process, distributed.is_distributed) == (
            0,
            1,
            True,
            False,
        )
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="WORLD_SIZE is set, but RANK is None in the environment: start with torchrun"):
        init_distributed("cpu", process_timeout=60).__enter__()


class _Store:
    """A rendezvous' store, played, but for its counts."""

    def clone(self) -> _Store:
        return self

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes:
        return b"other"


def test_no_thread_is_with_the_store_when_a_run_ends(monkeypatch: pytest.MonkeyPatch):
    """Python aborts when a thread comes back from the store's C++ while it ends."""

    class Slow(_Store):
        asked = threading.Event()

        def add(self, key: str, amount: int) -> int:
            self.asked.set()
            time.sleep(0.2)
            return 0

    monkeypatch.setattr(heartbeat, "PERIOD_S", 0.001)
    store = Slow()
    made = heartbeat.Heartbeat(store, rank=0, locations=["here", "there"], address="there", process_timeout=60)  # pyright: ignore[reportArgumentType]
    assert store.asked.wait(10)
    made.close()
    assert not [one for one in threading.enumerate() if one.name == "velogan-heartbeat"]


@pytest.mark.parametrize("answers", [True, False])
def test_a_silent_rank_and_a_silent_store_are_told_apart(answers: bool, monkeypatch: pytest.MonkeyPatch):
    told, said = threading.Event(), []

    class Store(_Store):
        """The next rank gives no sign; after the tenth of its counts, the store may answer no more."""

        asked = 0

        def add(self, key: str, amount: int) -> int:
            self.asked += key.endswith("1")
            if self.asked > 10 and not answers:
                told.wait(10)
                raise RuntimeError("closed")
            return 0

    def lost(self: Any, text: str) -> None:
        said.append(text)
        told.set()

    monkeypatch.setattr(heartbeat, "PERIOD_S", 0.01)
    monkeypatch.setattr(heartbeat.Heartbeat, "_end_process", lost)
    options: Any = {"store": Store(), "address": "an address", "process_timeout": 0.5}
    made = heartbeat.Heartbeat(rank=0, locations=["here", "there"], **options)
    assert told.wait(10)
    made.close()
    assert said[0].startswith("no heartbeat from rank 1" if answers else "no answer from the rendezvous at an address")
