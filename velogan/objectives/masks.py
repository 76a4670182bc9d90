"""Extra losses on translations, added to a phase of another objective; `MaskLoss` penalises changes outside masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from torch import Tensor

from velogan.objectives.base import LossOutput, Objective, Phase, PhaseCache
from velogan.types import Batch, Direction, Nets

MASK_LOSS_WEIGHT = 10.0
"""Weight of `MaskLoss`, equal to the weight of CycleGAN's cycle loss."""

GetFakes = Callable[[PhaseCache], Mapping[Direction, Tensor]]
"""Returns the translations `(B, C, H, W)` in a phase's cache, by direction."""


class ExtraLoss:
    """Adds loss terms on translations, which `get_fakes` reads from the cache, to a phase of `inner`."""

    def __init__(self, inner: Objective, get_fakes: GetFakes, *, phase_name: str):
        self._inner, self._get_fakes = inner, get_fakes
        self._phase_name = phase_name
        self.num_uniforms, self.state = inner.num_uniforms, inner.state

    def phases(self) -> list[Phase]:
        """Return the phases of the inner objective, with the extra terms in one of them."""
        return [
            replace(phase, loss=partial(self._loss, phase)) if phase.name == self._phase_name else phase
            for phase in self._inner.phases()
        ]

    def extra_losses(self, nets: Nets, batch: Batch, source: str, fake: Tensor) -> dict[str, Tensor]:
        """Return scalar losses by name for `fake`, translations `(B, C, H, W)` of images of domain `source`, a or b."""
        raise NotImplementedError

    def _loss(self, phase: Phase, nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        out = phase.loss(nets, batch, cache)
        terms, total = dict(out.terms), out.loss
        for direction, fake in self._get_fakes(out.cache).items():
            for name, value in self.extra_losses(nets, batch, direction[0], fake).items():
                terms[name], total = value, total + value
        return replace(out, loss=total, terms=terms)


class MaskLoss(ExtraLoss):
    """Penalises changes outside the masks.

    The batch holds `mask_a`, `mask_b` or both, `(B, 1, H, W)`, 1 where an image may change and 0 elsewhere.
    """

    def extra_losses(self, nets: Nets, batch: Batch, source: str, fake: Tensor) -> dict[str, Tensor]:
        if f"mask_{source}" not in batch:
            return {}
        loss = outside_mask_loss(fake, batch[source.upper()], batch[f"mask_{source}"])
        return {f"mask_{source}": loss * MASK_LOSS_WEIGHT}


def outside_mask_loss(fake: Tensor, source: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of |fake - source|, both `(B, C, H, W)`, where `mask`, `(B, 1, H, W)`, is 0.

    The result, a scalar, is the mean over images of each image's mean, so that microbatches do not change it; an image
    whose mask is all 1 counts 0.
    """
    outside = 1 - mask
    count = (outside.sum((1, 2, 3)) * fake.shape[1]).clamp(min=1)
    return (((fake.float() - source.float()).abs() * outside).sum((1, 2, 3)) / count).mean()
