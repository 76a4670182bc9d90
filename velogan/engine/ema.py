"""Exponential moving average of weights, for sampling and evaluation."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


class EMA:
    """Averaged copies of `nets`, with a half-life in images.

    The half-life grows with the run to at most `half_life` images: 5 % of the images seen (Karras et al. 2024,
    appendix B.3, ramp-up). Updated every `EVERY` steps with the equivalent decay, which costs an eighth.
    """

    EVERY = 8

    def __init__(self, nets: Mapping[str, nn.Module], *, half_life: int):
        self.nets = {role: copy.deepcopy(net).eval().requires_grad_(False) for role, net in nets.items()}
        self.half_life = half_life
        self._updated = 0

    @torch.no_grad()
    def update(self, nets: Mapping[str, nn.Module], *, images: int) -> None:
        """After a step that brought the run to `images`; buffers are copied, weights averaged."""
        half_life = max(1.0, min(self.half_life, 0.05 * images))
        keep = 0.5 ** ((images - self._updated) / half_life)
        self._updated = images
        for role, average in self.nets.items():
            torch._foreach_lerp_(list(average.parameters()), list(nets[role].parameters()), 1 - keep)
            for mine, theirs in zip(average.buffers(), nets[role].buffers()):
                mine.copy_(theirs)

    def state_dict(self) -> dict[str, Any]:
        return {"updated": self._updated}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._updated = state["updated"]
