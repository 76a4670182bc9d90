"""Statistics of a run: summed on the device and copied to the host once per log row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor


class Stats:
    """Means of named scalars, reset by each `tick`.

    `on_step_end` runs a few operations on the device, whatever the number of scalars. It does not wait for the device
    and can be part of a captured step.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], Tensor] = {}  # the sum of each name, then the count

    @torch.no_grad()
    def on_step_end(self, losses: Mapping[str, Tensor]) -> None:
        """Add `losses`, tensors of one element on one device, to the means of their names."""
        names = tuple(losses)
        stacked = torch.stack([value.detach().reshape(()) for value in losses.values()])
        if names not in self._sums:
            dtype = torch.float32 if stacked.device.type == "mps" else torch.float64  # Apple's devices have no float64
            self._sums[names] = torch.zeros(len(names) + 1, dtype=dtype, device=stacked.device)
        self._sums[names][:-1].add_(stacked)
        self._sums[names][-1].add_(1)

    def state_tensors(self) -> Iterator[Tensor]:
        """Yield the tensors in which `on_step_end` accumulates sums in place."""
        yield from self._sums.values()

    def tick(self) -> dict[str, float]:
        """Return the mean of each name with values since the last call, and reset all sums. Waits for the device."""
        sums: defaultdict[str, float] = defaultdict(float)
        counts: defaultdict[str, float] = defaultdict(float)
        for names, tensor in self._sums.items():
            *totals, count = tensor.tolist()
            if count:
                for name, total in zip(names, totals):
                    sums[name] += total
                    counts[name] += count
                tensor.zero_()
        return {name: total / counts[name] for name, total in sums.items()}
