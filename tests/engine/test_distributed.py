"""Gradients averaged over ranks, and heartbeats, by stand-ins; `tests/parallel/` has real processes."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from torch import nn

from velogan.engine import heartbeat
from velogan.engine.distributed import DistributedContext, init_distributed
from velogan.engine.heartbeat import Heartbeat


def _weights() -> list[nn.Parameter]:
    layers = [torch.ones(2, 3, 3, 3).contiguous(memory_format=torch.channels_last), torch.ones(4), torch.ones(5)]
    return [nn.Parameter(layer) for layer in layers]


def test_averages_gradients_and_losses_and_leaves_those_missing_that_all_ranks_lack(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    local, peer, sent = _weights(), _weights(), []
    local[0].grad, peer[0].grad = torch.randn(2, 3, 3, 3), torch.randn(2, 3, 3, 3)  # in another memory format
    peer[1].grad = torch.randn(4)
    expected = (local[0].grad + peer[0].grad) / 2, peer[1].grad / 2, None
    monkeypatch.setattr("velogan.engine.distributed.dist.all_reduce", sent.append)
    DistributedContext(1, 2).all_reduce_gradients(peer, {"total": torch.tensor(3.0)})

    monkeypatch.setattr("velogan.engine.distributed.dist.all_reduce", lambda flat: flat.add_(sent[0]))
    means = DistributedContext(0, 2).all_reduce_gradients(local, {"total": torch.tensor(1.0)})
    torch.testing.assert_close(tuple(weight.grad for weight in local), expected)
    assert local[0].grad.stride() == local[0].stride()
    assert means == {"total": 2.0}


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_non_finite_values_reach_the_mean_and_large_ones_do_not_overflow(value: float, monkeypatch: pytest.MonkeyPatch):
    for gradient, finite in ((value, False), (torch.finfo(torch.float32).max, True)):
        weight = nn.Parameter(torch.zeros(1))
        weight.grad = torch.tensor([gradient])
        monkeypatch.setattr("velogan.engine.distributed.dist.all_reduce", lambda flat: flat.add_(flat.clone()))
        DistributedContext(0, 2).all_reduce_gradients([weight], {"total": torch.tensor(1.0)})
        assert bool(weight.grad.isfinite().all()) == finite


def test_rejects_half_of_the_environment_of_torchrun(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="WORLD_SIZE is set, but RANK is None in the environment: start with torchrun"):
        init_distributed("cpu", process_timeout=60).__enter__()


class _Store:
    """A rendezvous store that answers late."""

    def __init__(self):
        self.called = threading.Event()

    def clone(self) -> _Store:
        return self

    def add(self, key: str, amount: int) -> int:
        self.called.set()
        time.sleep(0.2)
        return 0


def test_no_thread_waits_for_the_store_when_a_run_ends(monkeypatch: pytest.MonkeyPatch):
    """Python aborts if a thread returns from the store's C++ while it ends."""
    monkeypatch.setattr(heartbeat, "PERIOD_S", 0.001)
    store: Any = _Store()
    threads = Heartbeat(store, rank=0, locations=["A", "B"], address="an address", process_timeout=60)
    assert store.called.wait(10)
    threads.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "velogan-heartbeat"]


@pytest.mark.parametrize("answers", [True, False])
def test_distinguishes_a_silent_rank_from_a_silent_store(answers: bool, monkeypatch: pytest.MonkeyPatch):
    reported, messages = threading.Event(), []

    class Store:
        """The next rank sends no heartbeat; from the eleventh of its counts on, the store may answer no more."""

        count = 0

        def clone(self) -> Store:
            return self

        def add(self, key: str, amount: int) -> int:
            self.count += key.endswith("1")
            if self.count > 10 and not answers:
                reported.wait(10)
                raise RuntimeError("closed")
            return 0

    def end_process(self: Heartbeat, message: str) -> None:
        messages.append(message)
        reported.set()

    monkeypatch.setattr(heartbeat, "PERIOD_S", 0.01)
    monkeypatch.setattr(Heartbeat, "_end_process", end_process)
    store: Any = Store()
    threads = Heartbeat(store, rank=0, locations=["A", "B"], address="an address", process_timeout=0.5)
    assert reported.wait(10)
    threads.close()
    assert messages[0].startswith(
        "no heartbeat from rank 1" if answers else "no answer from the rendezvous at an address"
    )
