"""The processes that train one run together: the mean of their gradients, and what they agree on.

torchrun starts them and says in the environment how many there are. After `Ranks.mean` all of them hold the same
gradients and losses bit for bit, so whatever follows from these (updates, averages, statistics, a broken step, a
plateau) is the same everywhere without a word more. What follows from a clock or a signal is agreed on once a step.
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

from velogan.engine.heartbeat import GO_ON, Heart
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.processes import RankError, ToldElsewhere, local_rank, read_number, several

T = TypeVar("T")

_PATIENCE = timedelta(seconds=300)
"""How long processes wait for each other at the start."""

_FOREVER = timedelta(days=30)
"""How long an exchange may wait: `Heart` finds out who is lost, and the first rank may validate for long."""


class Ranks:
    """This process, number `rank` of `world` that train one run together; `Ranks()` is alone, and does nothing.

    `local_rank` of `local_world` counts those on this host. Methods that exchange something must be called by all
    ranks, in one order. ConnectionError where a peer is lost. `exchanged` is the type in which gradients travel.
    """

    def __init__(
        self, rank: int = 0, world: int = 1, *, local_rank: int = 0, local_world: int = 1, heart: Heart | None = None
    ):
        self.rank, self.world, self.local_rank, self.local_world = rank, world, local_rank, local_world
        self.heart = heart
        self.exchanged = torch.float32
        self._waited = 0.0

    @property
    def first(self) -> bool:
        """Whether this one writes the run folder and speaks."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        """Whether there are others."""
        return self.world > 1

    @property
    def parts(self) -> int:
        """In how many parts a step's images are cut: as many as there are ranks."""
        return self.world

    @property
    def part(self) -> int:
        """The number of this rank's part."""
        return self.rank

    @torch.no_grad()
    def mean(self, parameters: Sequence[nn.Parameter], terms: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gives all ranks the mean of their gradients of `parameters`; returns the means of `terms`, scalars.

        One exchange of one flat tensor; a second one for all but the gradients where these are rounded. A gradient that
        some rank lacks counts as zeros there; one that all lack stays missing. A number that is not finite on one rank
        is not finite on all.
        """
        if not self.several:
            return dict(terms)
        weights = list(parameters)
        missing = torch.tensor([weight.grad is None for weight in weights])
        flat = self.packed(weights, terms, (~missing).to(weights[0]))
        self.exchange(flat, sum(weight.numel() for weight in weights))
        present = flat[-len(weights) :].tolist() if missing.any() else []
        found = [not missing[number] or present[number] for number in range(len(weights))]
        return self.unpacked(flat, weights, list(terms), present=found)

    @torch.no_grad()
    def packed(self, parameters: Sequence[nn.Parameter], terms: Mapping[str, Tensor], *more: Tensor) -> Tensor:
        """This rank's part of what `mean` gives, and `more`, as one flat tensor, for `exchange` and then `unpacked`.

        With these three a captured step exchanges between two of its recordings. Missing gradients count as zeros.
        """
        parts = [_in_memory_order(weight) for weight in parameters]
        parts += [value.detach().float().reshape(1) for value in terms.values()]
        return torch.cat([*parts, *more]).div_(self.world)  # before the sum, which then cannot overflow

    def exchange(self, flat: Tensor, numbers: int) -> None:
        """Sums `flat` over all ranks; the first `numbers` of it are gradients."""
        with self._exchange():
            if self.exchanged is torch.float32:
                dist.all_reduce(flat)
            else:
                rounded = flat[:numbers].to(self.exchanged)
                dist.all_reduce(rounded)
                flat[:numbers] = rounded
                dist.all_reduce(flat[numbers:])

    @torch.no_grad()
    def unpacked(
        self, flat: Tensor, parameters: Sequence[nn.Parameter], terms: Sequence[str], *, present: Sequence[Any]
    ) -> dict[str, Tensor]:
        """Makes parts of `flat` the gradients of the `present` ones of `parameters`; returns the means of `terms`."""
        offset = 0
        for weight, there in zip(parameters, present, strict=True):
            if there:
                weight.grad = flat.as_strided(weight.shape, weight.stride(), offset)
            offset += weight.numel()
        means = flat[offset : offset + len(terms)].clone()  # else it would hold the memory of all gradients
        return dict(zip(terms, means.unbind()))

    def having(self, parameters: Sequence[nn.Parameter]) -> list[bool]:
        """Which of `parameters` have a gradient on some rank."""
        there = torch.tensor([weight.grad is not None for weight in parameters], dtype=torch.uint8)
        with self._exchange():
            dist.all_reduce(there, op=dist.ReduceOp.MAX)
        return there.bool().tolist()

    def everywhere(self, flags: Tensor) -> Tensor:
        """Which of a phase's `flags` are true on all ranks; after `mean` all have the same."""
        return flags

    def agree(self, *, seconds: float, stopping: bool) -> tuple[float, bool]:
        """The first rank's `seconds`, and whether any rank is `stopping`."""
        if not self.several:
            return seconds, stopping
        values = torch.tensor([seconds if self.first else 0.0, float(stopping)], dtype=torch.float64)
        with self._exchange():
            dist.all_reduce(values, op=dist.ReduceOp.MAX)
        return values[0].item(), bool(values[1])

    def share(self, value: T | None) -> T:
        """The first rank's `value`, on all; what the others give is ignored."""
        if self.several:
            held = [value if self.first else None]
            with self._exchange():
                dist.broadcast_object_list(held, src=0, device=torch.device("cpu"))
            value = held[0]
        return value  # pyright: ignore[reportReturnType]

    def share_tensors(self, tensors: Sequence[Tensor], *, source: int = 0) -> None:
        """Overwrites `tensors` with those of the rank `source`, the first one."""
        if self.several:
            with self._exchange(), torch.no_grad():
                for tensor in tensors:
                    flat = tensor.detach().contiguous()
                    dist.broadcast(flat, src=source)
                    tensor.copy_(flat)

    def gather(self, value: T) -> list[T]:
        """Every rank's `value`, in order, on all; tensors in it should be on the CPU."""
        if not self.several:
            return [value]
        found: list[Any] = [None] * self.world
        with self._exchange():
            dist.all_gather_object(found, value)
        return found

    def gather_first(self, value: T) -> list[T]:
        """As `gather`, but only the first rank gets the values; the others get nothing."""
        if not self.several:
            return [value]
        found: list[Any] | None = [None] * self.world if self.first else None
        with self._exchange():
            dist.gather_object(value, found, dst=0)
        return found or []

    def in_turn(self, make: Callable[[], T]) -> T:
        """`make()`, by one rank of each host before the others: what it leaves on the disk, they find."""
        made = make() if self.local_rank == 0 else None
        self.gather(None)
        return make() if made is None else made

    def worked(self, seconds: float) -> list[float]:
        """Of `seconds` since the last call, those that each rank did not wait for others."""
        worked = max(seconds - self._waited, 0.0)
        found = self.gather(worked)
        self._waited = 0.0
        return found

    def named(self, rank: int) -> str:
        """A rank, with its host and process."""
        return self.heart.named(rank) if self.heart else f"rank {rank}"

    def failed(self, error: BaseException) -> BaseException:
        """What to raise in place of `error`, which ends this process: exactly one of all ranks tells."""
        if self.heart is None or isinstance(error, ToldElsewhere):
            return error
        known = isinstance(error, (ValueError, OSError, NonFiniteError))
        code = 2 if isinstance(error, ValueError) else 130 if isinstance(error, KeyboardInterrupt) else 1
        tells = self.heart.first_to_tell()
        self.heart.close()
        if not tells:
            return ToldElsewhere(code)
        return error if self.first or not known else RankError(f"{self.named(self.rank)}: {error}", code)

    def close(self) -> None:
        """Waits for all, then takes leave of them."""
        if self.heart is not None:
            self.gather(None)
            self.heart.close()
            dist.destroy_process_group()

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
            self._waited += time.monotonic() - began
        except RuntimeError as error:
            said = re.sub(r"^\[[^\]]*\]\s*", "", str(error).splitlines()[0])
            who = self.heart.silent() if self.heart else ""
            raise ConnectionError(f"lost {who or 'a peer'} ({said}); {GO_ON}") from error


def _in_memory_order(weight: nn.Parameter) -> Tensor:
    """The weight's gradient, flat, in the order in which the weight lies in memory: the same on all ranks."""
    if weight.grad is None:
        return torch.zeros(weight.numel(), dtype=weight.dtype, device=weight.device)
    grad = weight.grad if weight.grad.stride() == weight.stride() else torch.empty_like(weight).copy_(weight.grad)
    return grad.as_strided((grad.numel(),), (1,))


@contextmanager
def joined(device: str, *, lost_after: float) -> Iterator[Ranks]:
    """The ranks that torchrun started, until the run ends; alone where it did not.

    `device` is the configured one; on CUDA each process takes the GPU of its number on the host.
    """
    if not several():
        yield Ranks()
        return
    ranks = _join(device, lost_after=lost_after)
    try:
        yield ranks
        ranks.close()
    except BaseException as error:
        other = ranks.failed(error)
        if other is error:
            raise
        raise other from error


def _join(device: str, *, lost_after: float) -> Ranks:
    cuda = _take_gpu(device)
    rank, world = read_number("RANK"), read_number("WORLD_SIZE")
    address = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
    try:
        store, _, _ = next(iter(dist.rendezvous("env://", timeout=_PATIENCE)))
        store = _unused(store, rank, world)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo", store=store, rank=rank, world_size=world, timeout=_FOREVER
        )
    except RuntimeError as error:
        said = str(error).splitlines()[0]
        raise ConnectionError(f"rank {rank} of {world} found no way to the others at {address}: {said}") from error
    where = f"{socket.gethostname()}, process {os.getpid()}"
    heart = Heart(store, rank=rank, world=world, where=where, address=address, lost_after=lost_after)
    return Ranks(rank, world, local_rank=local_rank(), local_world=read_number("LOCAL_WORLD_SIZE", "1"), heart=heart)


def _unused(store: dist.Store, rank: int, world: int) -> dist.Store:
    """The part of the store that belongs to this start of the ranks alone.

    When torchrun starts them again, the store still has what they said before, addresses too. So each says a new word,
    the first rank lists the words until every rank has found its own there, and the first word names the part.
    """
    mine, until = uuid4().hex, time.monotonic() + _PATIENCE.total_seconds()
    store.set(f"word/{rank}", mine)
    while time.monotonic() < until:
        if rank == 0:
            words = [store.get(f"word/{number}").decode() for number in range(world)]
            store.set("words", ",".join(words))
            confirmed = [f"confirmed/{word}/{mine}" for word in words[1:]]
            if store.check(confirmed):
                store.set(f"agreed/{mine}", ",".join(words))
                return dist.PrefixStore(mine, store)
        else:
            words = store.get("words").decode().split(",")
            if words[rank : rank + 1] == [mine]:
                store.set(f"confirmed/{mine}/{words[0]}", "")
                if store.check([f"agreed/{words[0]}"]):
                    return dist.PrefixStore(words[0], store)
        time.sleep(0.02)
    raise RuntimeError("not all processes have arrived")


def _take_gpu(device: str) -> bool:
    """Makes this process's GPU the one that `cuda` means; false where it trains on the CPU."""
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
