"""One step: every due phase's loss, backward pass and update, in order. The readable reference of the fast paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from velogan.objectives.base import Phase
from velogan.types import Batch


class Step:
    """Plays `phases` on batches by split.

    `nets` hold the weights; `players` are what the losses call: the same networks, or faster equivalents over the
    same weights. With `autocast`, convolutions run in that type; weights, losses and updates stay float32.
    Images are handed over in channels-last memory where that is asked for.
    """

    def __init__(
        self,
        phases: Sequence[Phase],
        *,
        nets: Mapping[str, nn.Module],
        optimizers: Mapping[str, torch.optim.Optimizer],
        players: Mapping[str, nn.Module] | None = None,
        autocast: torch.dtype | None = None,
        channels_last: bool = False,
    ):
        self.phases = list(phases)
        self.nets = nets
        self.players = players or nets
        self.optimizers = optimizers
        self.autocast = autocast
        self.layout = torch.channels_last if channels_last else torch.contiguous_format

    def __call__(self, batches: Mapping[str, Batch], *, number: int = 0) -> dict[str, Tensor]:
        """Runs step `number`; returns `phase/term` scalars, detached, without waiting for the device."""
        batches = {split: self._laid_out(batch) for split, batch in batches.items()}
        carries: dict[str, dict[str, Tensor]] = {}
        seen: dict[str, Tensor] = {}
        for phase in self.phases:
            if number % phase.every:
                continue
            carry = carries.setdefault(phase.split, {})
            with record_function(phase.name):
                seen |= self._play(phase, batches[phase.split], carry)
        return seen

    def _laid_out(self, batch: Batch) -> Batch:
        return {k: v.contiguous(memory_format=self.layout) if v.ndim == 4 else v for k, v in batch.items()}

    def _play(self, phase: Phase, batch: Batch, carry: dict[str, Tensor]) -> dict[str, Tensor]:
        for role, net in self.nets.items():
            net.requires_grad_(role in phase.trains)
        optimizer = self.optimizers[phase.name]
        optimizer.zero_grad(set_to_none=True)
        device = next(iter(batch.values())).device.type
        with torch.autocast(device, dtype=self.autocast, enabled=self.autocast is not None):
            out = phase.loss(self.players, batch, carry)
        out.total.backward()
        optimizer.step()
        carry |= {name: value.detach() for name, value in out.carry.items()}
        terms = {**out.terms, "total": out.total}
        return {f"{phase.name}/{name}": value.detach() for name, value in terms.items()}
