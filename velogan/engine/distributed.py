"""The processes that train one run together (ranks): the mean of their gradients, and what they decide in common.

torchrun starts them and says in the environment how many there are. After `all_reduce_gradients` all ranks hold the
same gradients and losses bit for bit, so everything derived from them (updates, averages, statistics, a broken step)
is identical everywhere without further communication. What follows from a clock or a signal is agreed on once a step.
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

from velogan.engine.heartbeat import GO_ON, Heartbeat
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.processes import RankError, ReportedByAnotherRank, is_distributed, local_rank, read_number

T = TypeVar("T")

_PATIENCE = timedelta(seconds=300)
"""How long processes wait for each other at the start."""

_FOREVER = timedelta(days=30)
"""How long an exchange may wait: `Heartbeat` finds out who is lost, and the first rank may validate for long."""


class DistributedContext:
    """Handle on the process group: this process is `rank` of `world`. Without arguments, a single process.

    `local_rank` of `local_world` counts those on this host. Methods that communicate must be called by all ranks, in
    one order; they raise ConnectionError if a peer is lost. Gradients are exchanged as `gradient_dtype`.
    """

    def __init__(
        self,
        rank: int = 0,
        world: int = 1,
        *,
        local_rank: int = 0,
        local_world: int = 1,
        heartbeat: Heartbeat | None = None,
    ):
        self.rank, self.world, self.local_rank, self.local_world = rank, world, local_rank, local_world
        self.heartbeat = heartbeat
        self.gradient_dtype = torch.float32

    @property
    def is_main_process(self) -> bool:
        """Whether this one writes the run folder and prints."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        """Whether there are others."""
        return self.world > 1

    @torch.no_grad()
    def all_reduce_gradients(
        self, parameters: Sequence[nn.Parameter], terms: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Average the gradients of `parameters` over all ranks, in place; return the means of `terms`, scalars.

        One all-reduce of one flat tensor; a second one for all but the gradients if these are rounded. A gradient that
        some rank lacks counts as zeros there; one that all ranks lack stays missing. A value that is not finite on one
        rank is not finite on all.
        """
        if not self.is_distributed:
            return dict(terms)
        missing = torch.tensor([weight.grad is None for weight in parameters])
        parts = [_in_memory_order(weight) for weight in parameters]
        parts += [value.detach().float().reshape(1) for value in terms.values()]
        # divided before the sum, which then cannot overflow
        flat = torch.cat([*parts, (~missing).to(parameters[0])]).div_(self.world)
        self._all_reduce(flat, sum(weight.numel() for weight in parameters))
        present = flat[-len(parameters) :].tolist() if missing.any() else [1.0] * len(parameters)
        offset = 0
        for weight, share in zip(parameters, present, strict=True):
            if share:
                weight.grad = flat.as_strided(weight.shape, weight.stride(), offset)
            offset += weight.numel()
        means = flat[offset : offset + len(terms)].clone()  # else it would hold the memory of all gradients
        return dict(zip(terms, means.unbind()))

    def _all_reduce(self, flat: Tensor, gradients: int) -> None:
        """Sum `flat` over all ranks; its first `gradients` values are gradients."""
        with self._communication():
            if self.gradient_dtype is torch.float32:
                dist.all_reduce(flat)
            else:
                rounded = flat[:gradients].to(self.gradient_dtype)
                dist.all_reduce(rounded)
                flat[:gradients] = rounded
                dist.all_reduce(flat[gradients:])

    def sync_clock_and_stop(self, *, seconds: float, stopping: bool) -> tuple[float, bool]:
        """Return the first rank's `seconds`, and whether any rank is `stopping`."""
        if not self.is_distributed:
            return seconds, stopping
        values = torch.tensor([seconds if self.is_main_process else 0.0, float(stopping)], dtype=torch.float64)
        with self._communication():
            dist.all_reduce(values, op=dist.ReduceOp.MAX)
        return values[0].item(), bool(values[1])

    def broadcast(self, value: T | None) -> T:
        """Return the first rank's `value` on all ranks; that of the others is ignored."""
        if self.is_distributed:
            held = [value if self.is_main_process else None]
            with self._communication():
                dist.broadcast_object_list(held, src=0, device=torch.device("cpu"))
            value = held[0]
        return value  # pyright: ignore[reportReturnType]

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite `tensors` with those of the first rank."""
        if self.is_distributed:
            with self._communication(), torch.no_grad():
                for tensor in tensors:
                    flat = tensor.detach().contiguous()
                    dist.broadcast(flat, src=0)
                    tensor.copy_(flat)

    def gather(self, value: T) -> list[T]:
        """Return every rank's `value`, in order, on all ranks; tensors in it should be on the CPU."""
        if not self.is_distributed:
            return [value]
        found: list[Any] = [None] * self.world
        with self._communication():
            dist.all_gather_object(found, value)
        return found

    def gather_first(self, value: T) -> list[T]:
        """Do as `gather`, but only the first rank gets the values; the others get none."""
        if not self.is_distributed:
            return [value]
        found: list[Any] | None = [None] * self.world if self.is_main_process else None
        with self._communication():
            dist.gather_object(value, found, dst=0)
        return found or []

    def main_process_first(self, make: Callable[[], T]) -> T:
        """Return `make()`, called by one rank of each host before the others, which find what it leaves on the disk."""
        made = make() if self.local_rank == 0 else None
        self.gather(None)
        return make() if made is None else made

    def describe(self, rank: int) -> str:
        """Name a rank with its host and process."""
        return self.heartbeat.describe(rank) if self.heartbeat else f"rank {rank}"

    def error_to_raise(self, error: BaseException) -> BaseException:
        """Return what to raise instead of `error`, which ends this process, so that exactly one rank reports."""
        if self.heartbeat is None or isinstance(error, ReportedByAnotherRank):
            return error
        known = isinstance(error, (ValueError, OSError, NonFiniteError))
        code = 2 if isinstance(error, ValueError) else 130 if isinstance(error, KeyboardInterrupt) else 1
        reports = self.heartbeat.claim_error_report()
        self.heartbeat.close()
        if not reports:
            return ReportedByAnotherRank(code)
        return error if self.is_main_process or not known else RankError(f"{self.describe(self.rank)}: {error}", code)

    def close(self) -> None:
        """Wait for all ranks, then leave the group."""
        if self.heartbeat is not None:
            self.gather(None)
            self.heartbeat.close()
            dist.destroy_process_group()

    @contextmanager
    def _communication(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            said = re.sub(r"^\[[^\]]*\]\s*", "", str(error).splitlines()[0])
            who = self.heartbeat.unresponsive_ranks() if self.heartbeat else ""
            raise ConnectionError(f"lost {who or 'a peer'} ({said}); {GO_ON}") from error


def _in_memory_order(weight: nn.Parameter) -> Tensor:
    """Return the weight's gradient, flat, in the weight's memory order: the same on all ranks."""
    if weight.grad is None:
        return torch.zeros(weight.numel(), dtype=weight.dtype, device=weight.device)
    grad = weight.grad if weight.grad.stride() == weight.stride() else torch.empty_like(weight).copy_(weight.grad)
    return grad.as_strided((grad.numel(),), (1,))


@contextmanager
def init_distributed(device: str, *, process_timeout: float) -> Iterator[DistributedContext]:
    """Join the processes that torchrun started until the run ends; a single process without torchrun.

    `device` is the configured one; on CUDA each process takes the GPU of its number on the host.
    """
    if not is_distributed():
        yield DistributedContext()
        return
    distributed = _join(device, process_timeout=process_timeout)
    try:
        yield distributed
        distributed.close()
    except BaseException as error:
        other = distributed.error_to_raise(error)
        if other is error:
            raise
        raise other from error


def _join(device: str, *, process_timeout: float) -> DistributedContext:
    cuda = _take_gpu(device)
    rank, world = read_number("RANK"), read_number("WORLD_SIZE")
    address = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
    try:
        store, _, _ = next(iter(dist.rendezvous("env://", timeout=_PATIENCE)))
        store = _launch_store(store, rank, world)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo", store=store, rank=rank, world_size=world, timeout=_FOREVER
        )
    except RuntimeError as error:
        said = str(error).splitlines()[0]
        raise ConnectionError(f"rank {rank} of {world} found no way to the others at {address}: {said}") from error
    where = f"{socket.gethostname()}, process {os.getpid()}"
    heartbeat = Heartbeat(store, rank=rank, world=world, where=where, address=address, process_timeout=process_timeout)
    return DistributedContext(
        rank, world, local_rank=local_rank(), local_world=read_number("LOCAL_WORLD_SIZE", "1"), heartbeat=heartbeat
    )


def _launch_store(store: dist.Store, rank: int, world: int) -> dist.Store:
    """Return a part of the store that is unique to this launch.

    When torchrun restarts the processes, the store still has the entries of the launch before, addresses too. So every
    rank publishes a fresh token; rank 0 lists the tokens until all ranks have confirmed theirs, and rank 0's token
    becomes the prefix.
    """
    token, until = uuid4().hex, time.monotonic() + _PATIENCE.total_seconds()
    store.set(f"token/{rank}", token)
    while time.monotonic() < until:
        if rank == 0:
            tokens = [store.get(f"token/{number}").decode() for number in range(world)]
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
    raise RuntimeError("not all processes have arrived")


def _take_gpu(device: str) -> bool:
    """Make this process's GPU the one that `cuda` means; return False if it trains on the CPU."""
    if device.partition(":")[0] not in ("auto", "cuda") or not torch.cuda.is_available():
        return False
    if ":" in device:
        raise ValueError(f"engine.device={device} with several processes, of which each has a GPU of its own: say cuda")
    if local_rank() >= torch.cuda.device_count():
        raise ValueError(
            f"process {local_rank()} of this host has no GPU of its own, there are {torch.cuda.device_count()}: start "
            f"torchrun with --nproc-per-node {torch.cuda.device_count()}, or say --engine.device cpu"
        )
    torch.cuda.set_device(local_rank())
    return True
