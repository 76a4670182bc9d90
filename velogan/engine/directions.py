"""Two processes that train one run together, each other networks of it on the same images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from velogan.engine.ranks import Ranks


class DirectionRanks(Ranks):
    """Two `Ranks` that each train the networks of one direction. Their losses exchange images, not weights."""

    def __init__(self, ranks: Ranks):
        super().__init__(
            ranks.rank, ranks.world, local_rank=ranks.local_rank, local_world=ranks.local_world, heart=ranks.heart
        )

    @property
    def part(self) -> int:
        return 0

    @property
    def parts(self) -> int:
        return 1

    @torch.no_grad()
    def mean(self, parameters: Sequence[nn.Parameter], terms: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Leaves the gradients as they are, which only one rank has; returns the sums of `terms`."""
        values = torch.stack([value.detach().float() for value in terms.values()])
        with self._exchange():
            dist.all_reduce(values)
        return dict(zip(terms, values.unbind()))

    def everywhere(self, flags: Tensor) -> Tensor:
        held = flags.to(torch.uint8)
        with self._exchange():
            dist.all_reduce(held, op=dist.ReduceOp.MIN)
        return held.bool()

    def swap(self, mine: Tensor, shape: Sequence[int]) -> Tensor:
        """Gives the other rank `mine` for its own tensor, of this shape and the same type."""
        mine, theirs, peer = mine.contiguous(), mine.new_empty(tuple(shape)), 1 - self.rank
        with self._exchange():
            both = [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, theirs, peer)]
            for work in dist.batch_isend_irecv(both):
                work.wait()
        return theirs
