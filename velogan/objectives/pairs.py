"""Some pairs among many unpaired pictures: a phase of its own, in which translations are held against the truth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from velogan.objectives.base import PAIRS, Carry, Objective, Out, Phase
from velogan.objectives.losses import l1_loss
from velogan.types import Batch, Direction, Nets

L1 = 10.0
"""Weight of |translation - truth|: that of CycleGAN's cycle."""

Translate = Callable[[Nets, Batch], Mapping[Direction, Tensor]]
"""Translations `(B, C, H, W)` of both domains' images by the networks of a method."""

See = Callable[[Tensor], Sequence[Tensor]]
"""Maps `(B, K, h, w)` of images `(B, C, H, W)`."""


class WithPairs:
    """An `inner` objective with one more phase, `pairs`, in each `every`-th step. `trains`: the networks it updates.

    `see` gives a frozen network's maps of images `(B, C, H, W)` in [-1, 1], the finest first; None: pixels alone count.
    """

    def __init__(
        self,
        inner: Objective,
        translate: Translate,
        *,
        trains: tuple[str, ...],
        every: int,
        see: See | None = None,
    ):
        self._inner, self._translate, self._trains, self._every, self._see = inner, translate, trains, every, see
        self.draws: Mapping[str, int] = {**inner.draws, PAIRS: 0}
        self.state = inner.state

    def phases(self) -> list[Phase]:
        """Those of the inner objective, and that of the pairs at the end."""
        pairs = Phase(name="pairs", trains=self._trains, loss=self.pairs_loss, split=PAIRS, every=self._every)
        return [*self._inner.phases(), pairs]

    def pairs_loss(self, nets: Nets, batch: Batch, carry: Carry) -> Out:
        """|translation - truth| of each direction, and where there are features, how far these are apart."""
        terms: dict[str, Tensor] = {}
        for way, made in self._translate(nets, batch).items():
            truth = batch["B" if way == "a2b" else "A"]
            terms[f"l1_{way}"] = l1_loss(made, truth) * L1
            if self._see is not None:
                terms[f"features_{way}"] = feature_distance(self._see, made, truth)
        total: Any = sum(terms.values())
        return Out(total=total, terms=terms)


def feature_distance(see: See, made: Tensor, truth: Tensor) -> Tensor:
    """The squared distance of the normalised features of two images at each place, summed over the maps of `see`.

    A scalar, the mean over images and places; Zhang et al. 2018, "The Unreasonable Effectiveness of Deep Features",
    equation 1 without learned weights. The images are `(B, C, H, W)` in [-1, 1].
    """
    mine, theirs = (see(images) for images in (made, truth))
    parts = [
        (F.normalize(one.float(), dim=1) - F.normalize(other.float(), dim=1)).square().sum(1).mean()
        for one, other in zip(mine, theirs)
    ]
    total: Any = sum(parts)
    return total
