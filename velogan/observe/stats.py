"""Statistics of a run, gathered where the numbers are and brought to the host once a tick."""

from __future__ import annotations

import torch
from torch import Tensor


class Stats:
    """Means of named scalars between two ticks.

    `add` is one in-place sum in the tensor's own device memory: it waits for nothing, and it is safe with
    captured steps, whose outputs the next replay overwrites.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    @torch.no_grad()
    def add(self, name: str, value: Tensor) -> None:
        """Count `value`, a tensor of one element on any device, towards the mean of `name`."""
        total = self._sums.get(name)
        if total is None:
            # Apple's devices have no float64
            dtype = torch.float32 if value.device.type == "mps" else torch.float64
            total = self._sums[name] = torch.zeros((), dtype=dtype, device=value.device)
        total.add_(value.detach().reshape(()))
        self._counts[name] = self._counts.get(name, 0) + 1

    def tick(self) -> dict[str, float]:
        """Means of what was added since the last tick (the only wait for the device); starts afresh.

        Names that got nothing are left out.
        """
        names = [name for name, count in self._counts.items() if count]
        if not names:
            return {}
        sums = torch.stack([self._sums[name] for name in names]).tolist()
        means = {name: total / self._counts[name] for name, total in zip(names, sums)}
        for name in names:
            self._sums[name].zero_()
            self._counts[name] = 0
        return means
