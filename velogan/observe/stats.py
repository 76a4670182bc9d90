"""Statistics of a run, gathered where the numbers are and brought to the host once a tick."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor


class Stats:
    """Means of named scalars between two ticks.

    `add` is two operations in the tensors' own device memory, however many there are: it waits for nothing, and it is
    safe with captured steps, whose outputs the next replay overwrites.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], Tensor] = {}
        self._counts: dict[tuple[str, ...], int] = {}

    @torch.no_grad()
    def add(self, values: Mapping[str, Tensor]) -> None:
        """Count `values`, tensors of one element on one device, towards the means of their names."""
        names = tuple(values)
        stacked = torch.stack([value.detach().reshape(()) for value in values.values()])
        if names not in self._sums:
            # Apple's devices have no float64
            dtype = torch.float32 if stacked.device.type == "mps" else torch.float64
            self._sums[names] = torch.zeros(len(names), dtype=dtype, device=stacked.device)
            self._counts[names] = 0
        self._sums[names].add_(stacked)
        self._counts[names] += 1

    def tick(self) -> dict[str, float]:
        """Means of what was added since the last tick (the only wait for the device); starts afresh.

        Names that got nothing are left out.
        """
        sums: defaultdict[str, float] = defaultdict(float)
        counts: defaultdict[str, int] = defaultdict(int)
        for names, count in self._counts.items():
            if count:
                for name, total in zip(names, self._sums[names].tolist()):
                    sums[name] += total
                    counts[name] += count
                self._sums[names].zero_()
                self._counts[names] = 0
        return {name: total / counts[name] for name, total in sums.items()}
