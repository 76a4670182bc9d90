"""Exponential moving average of weights, for sampling and evaluation."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


class EMA:
    """Averaged copies of `nets`, with a half-life in images.

    The half-life is `rampup` times the number of images seen, at most `half_life` (as in the code of Karras et al.
    2020, ADA). To save time the averages are updated only every `EVERY` steps, with the decay of all steps since the
    last update: the trainer calls `set_decay` before the step, and the step calls `on_step_end`.
    """

    EVERY = 8

    def __init__(self, nets: Mapping[str, nn.Module], *, half_life: int, rampup: float):
        self.nets = {role: copy.deepcopy(net).eval().requires_grad_(False) for role, net in nets.items()}
        self.half_life, self.rampup = half_life, rampup
        self._updated_at = 0
        self._sources = list(weights_and_buffers(nets))
        self._update_weight = torch.zeros((), device=self._sources[0].device)

    def set_decay(self, images: int) -> None:
        """Set the decay of the update in the next step; `images`: number seen after that step."""
        half_life = max(1.0, min(self.half_life, self.rampup * images))
        self._update_weight.fill_(1 - 0.5 ** ((images - self._updated_at) / half_life))
        self._updated_at = images

    @torch.no_grad()
    def on_step_end(self, losses: Mapping[str, Tensor]) -> None:
        """Update the averaged weights, and copy the buffers; `losses` are not used."""
        for average, source in zip(self.state_tensors(), self._sources):
            if isinstance(source, nn.Parameter):
                average.lerp_(source, self._update_weight)
            else:
                average.copy_(source)

    def state_tensors(self) -> Iterator[Tensor]:
        """Return the averaged weights and the copied buffers."""
        return weights_and_buffers(self.nets)

    def state_dict(self) -> dict[str, Any]:
        return {"updated": self._updated_at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._updated_at = state["updated"]


def weights_and_buffers(nets: Mapping[str, nn.Module]) -> Iterator[Tensor]:
    for net in nets.values():
        yield from net.parameters()
        yield from net.buffers()
