"""CycleGAN's step in two processes, each with the networks of one direction: the result of one, in half the time.

Each translates its images, they swap the translations, and each translates back what it was given. So the gradient of
the cycle loss with respect to a translation arises at the other process, which hands it back. All else is at home.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch.nn.functional as F

from velogan.methods.cyclegan import HALVES, CycleGAN, CycleGANObjective, sum_of
from velogan.objectives.base import Carry, Out, Owned, Phase, together
from velogan.objectives.halves import Swap, traded
from velogan.objectives.losses import fooling_loss
from velogan.types import Batch, Nets


class OneDirection(CycleGANObjective):
    """The half of `CycleGANObjective` that the process `number` computes, which exchanges by `swap`."""

    def __init__(
        self,
        config: CycleGAN,
        *,
        shape_a: tuple[int, int, int],
        shape_b: tuple[int, int, int],
        batched: bool,
        number: int,
        swap: Swap,
    ):
        super().__init__(config, shape_a=shape_a, shape_b=shape_b, batched=batched)
        self.halves, self.swap = (HALVES[number],), swap
        pools = (self.pool_b, self.pool_a)
        self.owned: Sequence[Owned] = [
            Owned(
                (half.generator, half.discriminator),
                lambda pool=pool, half=half: [*pool.buffers(), *self.augmenter.of_judge(half.number)],
            )
            for half, pool in zip(HALVES, pools)
        ]

    def phases(self) -> list[Phase]:
        """As of the whole objective."""
        adaptive = self.augmenter.fixed is None
        names = {
            "generator": ["adversarial_a", "adversarial_b", "cycle_a", "cycle_b"]
            + ["identity_a"] * bool(self.identity_a)
            + ["identity_b"] * bool(self.identity_b),
            "discriminator": ["a", "b", *(["augment_a", "augment_b"] if adaptive else [])],
            "penalty": ["penalty_a", "penalty_b"],
        }
        return [replace(one, loss=partial(_with_all, one.loss, names[one.name])) for one in super().phases()]

    def generator_loss(self, nets: Nets, batch: Batch, carry: Carry) -> Out:
        """The losses of one generator, and of the other one's translation through it."""
        config, (half,) = self.config, self.halves
        mine, other = half.letter, "b" if half.letter == "a" else "a"
        net, source, target = nets[half.generator], batch[half.source], batch[half.target]
        identity = {"a": self.identity_a, "b": self.identity_b}[mine]
        early = [target] if identity and self.batched else []
        fake, *same = together(net, source, *early)
        theirs = traded(fake.float(), (len(target), source.shape[1], *target.shape[2:]), self.swap)
        back = net(theirs)
        if identity and not self.batched:
            same = [net(target)]
        judged = nets[half.discriminator](self._seen(half.discriminator, fake, batch, 0))
        cycle = {"a": config.cycle_a, "b": config.cycle_b}[other]
        adversarial = {"a": config.adversarial_a, "b": config.adversarial_b}[mine]
        terms = {
            f"adversarial_{mine}": fooling_loss(judged, kind=config.gan) * adversarial,
            f"cycle_{other}": F.l1_loss(back.float(), target) * cycle,
        }
        terms |= {f"identity_{mine}": F.l1_loss(one.float(), target) * cycle * identity for one in same}
        return Out(total=sum_of(terms), terms=terms, carry={half.fake: fake.float()})


def _with_all(loss: Callable[[Nets, Batch, Carry], Out], names: Sequence[str], *given: Any) -> Out:
    """What `loss` gives, with 0 for those terms that it lacks."""
    out = loss(*given)
    nothing = out.total.new_zeros(())
    return replace(out, terms={name: out.terms.get(name, nothing) for name in names})
