"""Keeping what masks say must be kept: a term more in the phase that trains the generators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from torch import Tensor

from velogan.objectives.base import LossOutput, Objective, Phase, PhaseCache
from velogan.types import Batch, Direction, Nets

MASK_LOSS_WEIGHT = 10.0
"""Weight of the term: that of CycleGAN's cycle."""

Fakes = Callable[[PhaseCache], Mapping[Direction, Tensor]]
"""The translations `(B, C, H, W)` among what a phase hands on."""


class ExtraLoss:
    """An `inner` objective whose phase `name` also pays for its translations, which `fakes` finds; see `terms`."""

    def __init__(self, inner: Objective, fakes: Fakes, *, name: str):
        self._inner, self._fakes, self._name = inner, fakes, name
        self.draws, self.state = inner.draws, inner.state

    def phases(self) -> list[Phase]:
        """Those of the inner objective."""
        return [
            replace(phase, loss=partial(self._loss, phase)) if phase.name == self._name else phase
            for phase in self._inner.phases()
        ]

    def extra_losses(self, nets: Nets, batch: Batch, letter: str, fake: Tensor) -> dict[str, Tensor]:
        """What is paid for `fake`, the translations of the domain `letter`, a or b: scalars by name."""
        raise NotImplementedError

    def _loss(self, phase: Phase, nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        out = phase.loss(nets, batch, cache)
        terms, total = dict(out.logged), out.loss
        for way, fake in self._fakes(out.cache).items():
            for name, value in self.extra_losses(nets, batch, way[0], fake).items():
                terms[name], total = value, total + value
        return replace(out, loss=total, logged=terms)


class MaskLoss(ExtraLoss):
    """Pays for what translations change where they must not.

    The batch holds `mask_a`, `mask_b` or both, `(B, 1, H, W)`, 1 where a picture may change and 0 where it stays.
    """

    def extra_losses(self, nets: Nets, batch: Batch, letter: str, fake: Tensor) -> dict[str, Tensor]:
        if f"mask_{letter}" not in batch:
            return {}
        return {
            f"kept_{letter}": changed_outside(fake, batch[letter.upper()], batch[f"mask_{letter}"]) * MASK_LOSS_WEIGHT
        }


def changed_outside(made: Tensor, given: Tensor, mask: Tensor) -> Tensor:
    """The mean of |made - given|, `(B, C, H, W)`, where `mask`, `(B, 1, H, W)`, is 0; 0 where it is 1 everywhere.

    A scalar, the mean over the pictures of their means, so that parts of a batch add up to it.
    """
    outside = 1 - mask
    count = (outside.sum((1, 2, 3)) * made.shape[1]).clamp(min=1)
    return (((made.float() - given.float()).abs() * outside).sum((1, 2, 3)) / count).mean()
