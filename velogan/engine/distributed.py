"""Communication between the processes (ranks) that train one run, which torchrun starts.

After `all_reduce_gradients` all ranks hold the same gradients and losses bit for bit, so everything derived from them
(updates, averages, statistics, errors) is identical on all ranks without further communication. Decisions from clocks
and signals are synchronised once per step.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor, nn

from velogan.engine.heartbeat import RESUME_HINT, Heartbeat
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.processes import EndOfRun, ReportedByAnotherRank, is_distributed, local_rank, read_env_int

T = TypeVar("T")

_START_TIMEOUT = timedelta(seconds=300)
"""Maximum time that processes wait for each other at the start."""

_COLLECTIVE_TIMEOUT = timedelta(days=30)
"""Practically unlimited: rank 0 may validate for hours, and `Heartbeat` detects lost ranks."""


class DistributedContext:
    """Handle on the process group: this process is `rank` of `world_size`; by default the only one.

    `local_rank` and `local_world_size` count the processes of this host. All ranks must call the methods that
    communicate, in the same order; they raise ConnectionError if a peer is lost.
    """

    def __init__(
        self,
        rank: int = 0,
        world_size: int = 1,
        *,
        local_rank: int = 0,
        local_world_size: int = 1,
        heartbeat: Heartbeat | None = None,
    ):
        self.rank, self.world_size = rank, world_size
        self.local_rank, self.local_world_size = local_rank, local_world_size
        self.heartbeat = heartbeat

    @property
    def is_main_process(self) -> bool:
        """Whether this process writes the run folder and prints."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        """Whether there are other ranks."""
        return self.world_size > 1

    @torch.no_grad()
    def all_reduce_gradients(
        self, parameters: Sequence[nn.Parameter], terms: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Average the gradients of `parameters` over all ranks, in place; return the means of `terms`, scalars.

        All-reduces one flat tensor. A gradient that some ranks lack counts as zeros there; one that all ranks lack
        stays None. A value that is not finite on one rank is not finite on all.
        """
        if not self.is_distributed:
            return dict(terms)
        missing = torch.tensor([weight.grad is None for weight in parameters])
        pieces = [_flat_gradient(weight) for weight in parameters]
        pieces += [value.detach().float().reshape(1) for value in terms.values()]
        # divided before the sum, which then cannot overflow
        flat = torch.cat([*pieces, (~missing).to(parameters[0])]).div_(self.world_size)
        with self._communication():
            dist.all_reduce(flat)
        present = flat[-len(parameters) :].tolist() if missing.any() else [1.0] * len(parameters)
        offset = 0
        for weight, is_present in zip(parameters, present, strict=True):
            if is_present:
                weight.grad = flat.as_strided(weight.shape, weight.stride(), offset)
            offset += weight.numel()
        means = flat[offset : offset + len(terms)].clone()  # a view would keep the memory of all gradients
        return dict(zip(terms, means.unbind()))

    def sync_clock_and_stop(self, *, seconds: float, stop_requested: bool) -> tuple[float, bool]:
        """Return rank 0's `seconds`, and whether `stop_requested` is true on any rank."""
        if not self.is_distributed:
            return seconds, stop_requested
        values = torch.tensor([seconds if self.is_main_process else 0.0, float(stop_requested)], dtype=torch.float64)
        with self._communication():
            dist.all_reduce(values, op=dist.ReduceOp.MAX)
        return values[0].item(), bool(values[1])

    def broadcast(self, value: T | None) -> T:
        """Return rank 0's `value` on all ranks; the values of other ranks are ignored."""
        if self.is_distributed:
            values = [value if self.is_main_process else None]
            with self._communication():
                dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
            value = values[0]
        return value  # pyright: ignore[reportReturnType]

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite `tensors` on all ranks with the tensors of rank 0."""
        if self.is_distributed:
            with self._communication(), torch.no_grad():
                for tensor in tensors:
                    flat = tensor.detach().contiguous()
                    dist.broadcast(flat, src=0)
                    tensor.copy_(flat)

    def all_gather(self, value: T) -> list[T]:
        """Return every rank's `value`, in rank order, on all ranks; tensors in it should be on the CPU."""
        if not self.is_distributed:
            return [value]
        values: list[Any] = [None] * self.world_size
        with self._communication():
            dist.all_gather_object(values, value)
        return values

    def gather_to_main(self, value: T) -> list[T]:
        """Return every rank's `value` on rank 0, and an empty list on the others."""
        if not self.is_distributed:
            return [value]
        values: list[Any] | None = [None] * self.world_size if self.is_main_process else None
        with self._communication():
            dist.gather_object(value, values, dst=0)
        return values or []

    def main_process_first(self, function: Callable[[], T]) -> T:
        """Return `function()`, called first by one rank of each host, so that the others find its files on the disk."""
        result = function() if self.local_rank == 0 else None
        self.all_gather(None)
        return function() if result is None else result

    def describe(self, rank: int) -> str:
        """Return the name of a rank, with its host and process."""
        return self.heartbeat.describe(rank) if self.heartbeat else f"rank {rank}"

    def error_to_raise(self, error: BaseException) -> BaseException:
        """Return the exception to raise for `error`, so that exactly one rank prints why the run ends."""
        if self.heartbeat is None or isinstance(error, ReportedByAnotherRank):
            return error
        is_expected = isinstance(error, (ValueError, OSError, NonFiniteError))
        code = 2 if isinstance(error, ValueError) else 130 if isinstance(error, KeyboardInterrupt) else 1
        must_report = self.heartbeat.claim_error_report()
        self.heartbeat.close()
        if not must_report:
            return ReportedByAnotherRank(code=code)
        if self.is_main_process or not is_expected:
            return error
        return EndOfRun(f"{self.describe(self.rank)}: {error}", code=code)

    def close(self) -> None:
        """Wait for all ranks, then leave the group."""
        if self.heartbeat is not None:
            self.all_gather(None)
            self.heartbeat.close()
            dist.destroy_process_group()

    @contextmanager
    def _communication(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            reason = re.sub(r"^\[[^\]]*\]\s*", "", str(error).splitlines()[0])
            lost = self.heartbeat.unresponsive_ranks() if self.heartbeat else ""
            raise ConnectionError(f"lost {lost or 'a peer'} ({reason}); {RESUME_HINT}") from error


def _flat_gradient(weight: nn.Parameter) -> Tensor:
    """Return the weight's gradient, or zeros, flat and in the weight's memory order: the same on all ranks."""
    if weight.grad is None:
        return torch.zeros(weight.numel(), dtype=weight.dtype, device=weight.device)
    grad = weight.grad if weight.grad.stride() == weight.stride() else torch.empty_like(weight).copy_(weight.grad)
    return grad.as_strided((grad.numel(),), (1,))


@contextmanager
def init_distributed(device: str, *, process_timeout: float) -> Iterator[DistributedContext]:
    """Join torchrun's process group, and leave it at the end; without torchrun, yield the context of one process.

    `device`: value of engine.device; on CUDA each process uses the GPU whose index is its local rank.
    """
    if not is_distributed():
        yield DistributedContext()
        return
    distributed = _join_process_group(device, process_timeout=process_timeout)
    try:
        yield distributed
        distributed.close()
    except BaseException as error:
        reported = distributed.error_to_raise(error)
        if reported is error:
            raise
        raise reported from error


def _join_process_group(device: str, *, process_timeout: float) -> DistributedContext:
    uses_cuda = _select_gpu(device)
    rank, world_size = read_env_int("RANK"), read_env_int("WORLD_SIZE")
    address = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
    try:
        store, _, _ = next(iter(dist.rendezvous("env://", timeout=_START_TIMEOUT)))
        store = _launch_store(store, rank, world_size)
        backend = "cpu:gloo,cuda:nccl" if uses_cuda else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=_COLLECTIVE_TIMEOUT)
        # by the store, which times out: no heartbeat watches the ranks yet
        store.set(f"location/{rank}", f"{socket.gethostname()}, process {os.getpid()}")
        locations = [store.get(f"location/{other}").decode() for other in range(world_size)]
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ConnectionError(f"rank {rank} of {world_size} cannot reach the others at {address}: {reason}") from error
    return DistributedContext(
        rank,
        world_size,
        local_rank=local_rank(),
        local_world_size=read_env_int("LOCAL_WORLD_SIZE", "1"),
        heartbeat=Heartbeat(store, rank=rank, locations=locations, address=address, process_timeout=process_timeout),
    )


def _launch_store(store: dist.Store, rank: int, world_size: int) -> dist.Store:
    """Return the store under a prefix that is unique to this launch.

    When torchrun restarts the processes, the store still has the entries of the previous launch, such as addresses. So
    every rank publishes a new token, rank 0 publishes the list of all tokens until every rank has confirmed that its
    token is in it, and rank 0's token becomes the prefix.
    """
    token, deadline = uuid4().hex, time.monotonic() + _START_TIMEOUT.total_seconds()
    store.set(f"token/{rank}", token)
    while time.monotonic() < deadline:
        if rank == 0:
            tokens = [store.get(f"token/{number}").decode() for number in range(world_size)]
            store.set("tokens", ",".join(tokens))
            confirmed = [f"confirmed/{other}/{token}" for other in tokens[1:]]
            if store.check(confirmed):
                store.set(f"agreed/{token}", ",".join(tokens))
                return dist.PrefixStore(token, store)
        else:
            tokens = store.get("tokens").decode().split(",")
            if tokens[rank : rank + 1] == [token]:
                store.set(f"confirmed/{token}/{tokens[0]}", "")
                if store.check([f"agreed/{tokens[0]}"]):
                    return dist.PrefixStore(tokens[0], store)
        time.sleep(0.02)
    raise RuntimeError("not all processes have started")


def _select_gpu(device: str) -> bool:
    """Make the GPU of this process the current one; return False if it trains on the CPU."""
    if device.partition(":")[0] not in ("auto", "cuda") or not torch.cuda.is_available():
        return False
    count = torch.cuda.device_count()
    if ":" in device or local_rank() >= count:
        raise ValueError(
            f"engine.device={device}: process {local_rank()} of this host needs a GPU of its own; set cuda, and "
            f"torchrun's --nproc-per-node to at most {count}, or set cpu"
        )
    torch.cuda.set_device(local_rank())
    return True
