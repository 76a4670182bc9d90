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


@pytest.mark.parametrize(
    ("value", "is_finite"), [(torch.inf, False), (torch.nan, False), (torch.finfo(torch.float32).max, True)]
)
def test_a_mean_is_finite_if_all_values_are(value: float, is_finite: bool, monkeypatch: pytest.MonkeyPatch):
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.tensor([value])
    monkeypatch.setattr("velogan.engine.distributed.dist.all_reduce", lambda flat: flat.add_(flat.clone()))
    DistributedContext(0, 2).all_reduce_gradients([weight], {"total": torch.tensor(1.0)})
    assert bool(weight.grad.isfinite().all()) == is_finite


def test_without_torchrun_there_is_one_rank_and_half_of_its_environment_is_rejected(monkeypatch: pytest.MonkeyPatch):
    with init_distributed("cpu", process_timeout=60) as distributed:
        assert (distributed.rank, distributed.world_size) == (0, 1)
        assert distributed.is_main_process
        assert not distributed.is_distributed
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="WORLD_SIZE is set, but RANK is None in the environment: start with torchrun"):
        init_distributed("cpu", process_timeout=60).__enter__()


class _Store:
    """A rendezvous store whose counters never change; after `max_calls` of the peer's it stops answering."""

    def __init__(self, *, delay_s: float = 0.0, max_calls: float = float("inf")):
        self.delay_s, self.max_calls, self.calls = delay_s, max_calls, 0
        self.called, self.closed = threading.Event(), threading.Event()

    def clone(self) -> _Store:
        return self

    def add(self, key: str, amount: int) -> int:
        self.called.set()
        self.calls += key.endswith("1")
        time.sleep(self.delay_s)
        if self.calls > self.max_calls:
            self.closed.wait(10)
            raise RuntimeError("closed")
        return 0


def _heartbeat(store: Any, *, process_timeout: float) -> Heartbeat:
    locations = ["here", "there"]
    return Heartbeat(store, rank=0, locations=locations, address="an address", process_timeout=process_timeout)


def test_no_thread_waits_for_the_store_when_a_run_ends(monkeypatch: pytest.MonkeyPatch):
    """Python aborts if a thread returns from the store's C++ while it ends."""
    monkeypatch.setattr(heartbeat, "PERIOD_S", 0.001)
    threads = _heartbeat(store := _Store(delay_s=0.2), process_timeout=60)
    assert store.called.wait(10)
    threads.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "velogan-heartbeat"]


@pytest.mark.parametrize(
    ("max_calls", "message"),
    [(float("inf"), "no heartbeat from rank 1"), (10, "no answer from the rendezvous at an address")],
)
def test_distinguishes_a_silent_rank_from_a_silent_store(
    max_calls: float, message: str, monkeypatch: pytest.MonkeyPatch
):
    store, messages = _Store(max_calls=max_calls), []

    def end_process(_: Heartbeat, text: str) -> None:
        messages.append(text)
        store.closed.set()

    monkeypatch.setattr(heartbeat, "PERIOD_S", 0.01)
    monkeypatch.setattr(Heartbeat, "_end_process", end_process)
    threads = _heartbeat(store, process_timeout=0.5)
    assert store.closed.wait(10)
    threads.close()
    assert messages[0].startswith(message)
