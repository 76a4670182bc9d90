"""Statistics of a run: summed on the device and copied to the host once per tick."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor


class Stats:
    """Means of named scalars between two ticks.

    `follow` runs a few operations on the device, for any number of scalars. It waits for nothing and can be part of a
    captured step.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], Tensor] = {}  # the sum of each name, then the count

    @torch.no_grad()
    def follow(self, losses: Mapping[str, Tensor]) -> None:
        """Adds `losses`, tensors of one element on one device, to the means of their names; there may be none."""
        if not losses:  # of a node whose phase was not due
            return
        names = tuple(losses)
        stacked = torch.stack([value.detach().reshape(()) for value in losses.values()])
        if names not in self._sums:
            self._sums[names] = torch.zeros(len(names) + 1, dtype=_sum_type(stacked.device), device=stacked.device)
        self._sums[names][:-1].add_(stacked)
        self._sums[names][-1].add_(1)

    def tensors(self) -> Iterator[Tensor]:
        """The sums so far."""
        yield from self._sums.values()

    def tick(self) -> dict[str, float]:
        """Returns the means since the last tick and resets them. It waits for the device.

        Names without values are left out.
        """
        sums: defaultdict[str, float] = defaultdict(float)
        counts: defaultdict[str, float] = defaultdict(float)
        for names, kept in self._sums.items():
            *totals, count = kept.tolist()
            if count:
                for name, total in zip(names, totals):
                    sums[name] += total
                    counts[name] += count
                kept.zero_()
        return {name: total / counts[name] for name, total in sums.items()}


class EpochLoss:
    """The mean of one phase's total over an epoch of the schedule."""

    def __init__(self, device: torch.device, *, phase: str) -> None:
        self._name = f"{phase}/total"
        self._sums = torch.zeros(2, dtype=_sum_type(device), device=device)  # the sum of the losses, then the count

    @torch.no_grad()
    def follow(self, losses: Mapping[str, Tensor]) -> None:
        """Adds the phase's total from `losses`, if the step ran that phase."""
        if self._name in losses:
            self._sums[0].add_(losses[self._name])
            self._sums[1].add_(1)

    def tensors(self) -> Iterator[Tensor]:
        """The sums so far."""
        yield self._sums

    def take(self) -> float | None:
        """Returns the mean since the last call, None without values, and resets it. It waits for the device."""
        total, count = self._sums.tolist()
        self._sums.zero_()
        return total / count if count else None

    def state_dict(self) -> list[float]:
        """The sum and the count so far."""
        return self._sums.tolist()

    def load_state_dict(self, state: Sequence[float]) -> None:
        self._sums.copy_(torch.tensor(state, dtype=self._sums.dtype))


def _sum_type(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # Apple's devices have no float64
