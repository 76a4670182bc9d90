"""CycleGAN (Zhu et al. 2017): two generators, two discriminators, cycle and identity consistency.

Roles follow the reference implementation: `G_A` maps A to B, `G_B` maps B to A; `D_A` judges images of domain B,
`D_B` images of domain A.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from velogan.methods.adversarial import Adversarial
from velogan.methods.base import Make, Role, Spec, Views, discriminator_header, ends
from velogan.objectives.augment import AUGMENT, Augmentation, Augmenter
from velogan.objectives.base import Carry, Out, Owned, Phase, side_by_side, together
from velogan.objectives.directions import DirectionObjective, Swap, traded
from velogan.objectives.losses import fooling_loss, gan_loss, gradient_penalty, lost_edges
from velogan.objectives.pool import FakePool
from velogan.types import Batch, Decision, Direction, Letter, Nets


class CycleGAN(Adversarial):
    """Generators G_A (A to B) and G_B (B to A); discriminators D_A of domain B, D_B of domain A; images a and b."""

    kind = "cyclegan"
    summary = "two generators and two discriminators, cycle and identity consistency"

    adversarial_a: float = Field(default=1.0, ge=0, description="Weight of the adversarial loss of G_A, by D_A.")
    adversarial_b: float = Field(default=1.0, ge=0, description="Weight of the adversarial loss of G_B, by D_B.")
    cycle_a: float = Field(default=10.0, ge=0, description="Weight of |G_B(G_A(a)) - a|.")
    cycle_b: float = Field(default=10.0, ge=0, description="Weight of |G_A(G_B(b)) - b|.")
    identity: float = Field(
        default=0.5,
        ge=0,
        description="Weight of |G_A(b) - b| as a factor of cycle_b (0.5 times 10 is 5), and of |G_B(a) - a| as one of "
        "cycle_a: images of the target domain stay as they are. More against inverted colours, less against copies. "
        "Left out where A and B differ in their number of channels.",
    )
    edges: float = Field(
        default=0.0,
        ge=0,
        description="Weight of the edges of an image that its translation has lost, whatever the brightness and the "
        "colours. It keeps shapes, and does not hinder new things where the image is flat.",
    )
    pool_size: int = Field(
        default=50,
        ge=0,
        description="Earlier translations kept per direction, of which the discriminators see some again.",
    )
    untranslated: float = Field(
        default=0.0,
        ge=0,
        le=0.5,
        description="This share of the translations that the PatchGAN of D_A learns to refuse is replaced by images of "
        "A as they are (for D_B: of B). So it does not forget that these are not of its domain, and doing nothing does "
        "not pay. Heads on trained features are not asked about them. Left out where A and B differ in their number of "
        "channels.",
    )
    augment: tuple[Augmentation, ...] = Field(default=(), description=AUGMENT)
    augment_probability: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="The share of images that `augment` changes: below 1 where discriminators learn too slowly.",
    )

    @model_validator(mode="after")
    def _probability_of_something(self) -> CycleGAN:
        if self.augment_probability != 1 and not self.augment:
            raise ValueError(
                f"augment_probability={self.augment_probability} has nothing to change: set augment=colour,shift, or "
                "leave it out"
            )
        return self

    @property
    def one_size(self) -> str:
        return f"method.pool_size={self.pool_size}" if self.pool_size else ""

    def check(self, spec: Spec) -> None:
        network = next((one.network for one in spec.discriminators.values() if one.network.startswith("projected")), "")
        if network and self.gan == "wgangp":
            raise ValueError(
                f"discriminator.network={network} has several heads, and method.gan=wgangp is for one: set "
                "method.gan=hinge"
            )
        if self.untranslated and any(one.network == "projected" for one in spec.discriminators.values()):
            raise ValueError(
                f"method.untranslated={self.untranslated:g} is for PatchGANs, and discriminator.network=projected has "
                "none: set method.untranslated=0, or discriminator.network=projected+basic"
            )

    def remarks(self, spec: Spec) -> list[Decision]:
        a, b = spec.channels["A"], spec.channels["B"]
        if a == b:
            return []
        unlike = f"channels of domain A: {a}, of domain B: {b}"
        off = {
            "identity loss": self.identity,
            "untranslated images for discriminators": self.untranslated,
        }
        return [Decision(name, "off", unlike) for name, wanted in off.items() if wanted]

    def roles(self, spec: Spec, make: Make) -> dict[str, Role]:
        def generator(way: Direction) -> Role:
            source, target = ends(way)
            channels = {"in_channels": spec.channels[source], "out_channels": spec.channels[target]}
            return Role(net=make.generator(spec.generators[way], **channels), averaged=True)

        def discriminator(way: Direction) -> Role:
            config, (_, target) = spec.discriminators[way], ends(way)
            channels = spec.channels[target]
            return Role(
                net=make.discriminator(config, in_channels=channels),
                header=discriminator_header(config, in_channels=channels),
                judges=target,
                twice_differentiated=self.second_derivatives,
            )

        return {
            "G_A": generator("a2b"),
            "G_B": generator("b2a"),
            "D_A": discriminator("a2b"),
            "D_B": discriminator("b2a"),
        }

    def objective(self, spec: Spec, *, shape: tuple[int, int], batched: bool) -> CycleGANObjective:
        a, b = ((spec.channels[letter], *shape) for letter in ("A", "B"))
        return CycleGANObjective(self, shape_a=a, shape_b=b, batched=batched)

    def one_direction(
        self, spec: Spec, *, shape: tuple[int, int], batched: bool, number: int, swap: Swap
    ) -> DirectionObjective:
        a, b = ((spec.channels[letter], *shape) for letter in ("A", "B"))
        return OneDirection(self, shape_a=a, shape_b=b, batched=batched, number=number, swap=swap)

    def views(self, nets: Nets, spec: Spec) -> Views:
        return Views({"a2b": nets["G_A"], "b2a": nets["G_B"]})


GRADIENT_PENALTY = 10.0
"""Weight of the penalty that belongs to `gan=wgangp` (Gulrajani et al. 2017, section 4)."""

_DRAWS = 6
"""Uniform numbers for an image without augmentation: two for each pool, one for each gradient penalty."""


@dataclass(frozen=True)
class OneWay:
    """The networks of one direction, its domains, and the names of what its generator makes.

    `letter` is that of its networks and of its terms. `fake` is the translation of the source, `back` that of the other
    direction's translation, `same` what becomes of the target's images.
    """

    number: int
    letter: Literal["a", "b"]
    generator: str
    discriminator: str
    source: Letter
    target: Letter
    fake: str
    back: str
    same: str


_WAYS = (
    OneWay(0, "a", "G_A", "D_A", source="A", target="B", fake="fake_b", back="back_b", same="same_b"),
    OneWay(1, "b", "G_B", "D_B", source="B", target="A", fake="fake_a", back="back_a", same="same_a"),
)
_JUDGES = tuple(way.discriminator for way in _WAYS)


class CycleGANObjective:
    """The losses as two phases over the roles G_A, G_B, D_A, D_B.

    `shape_a` and `shape_b` are the (C, H, W) of fakes of domain A and B, for the pools; where C differs there is no
    identity loss, which feeds each generator the other domain's images, and discriminators are shown no untranslated
    ones. With `batched`, passes of one network are run together, which is exact with per-sample norms; without, one
    image batch a pass in the reference's order.
    """

    def __init__(
        self,
        config: CycleGAN,
        *,
        shape_a: tuple[int, int, int],
        shape_b: tuple[int, int, int],
        batched: bool = False,
    ):
        self.config = config
        self.batched = batched
        self.ways = _WAYS
        self.augmenter = Augmenter(config.augment, config.augment_probability)
        same = shape_a[0] == shape_b[0]
        self.untranslated = config.untranslated if same else 0.0
        self.plain_draws = _DRAWS + 6 * self.augmenter.count
        self.draws: Mapping[str, int] = {"train": self.plain_draws + (2 if self.untranslated else 0)}
        self.identity = config.identity if same else 0.0
        self.pool_a = FakePool(config.pool_size, shape_a)
        self.pool_b = FakePool(config.pool_size, shape_b)
        self.state: nn.Module = nn.ModuleDict({"fake_a": self.pool_a, "fake_b": self.pool_b})

    def phases(self) -> list[Phase]:
        """Generators first: the discriminators see fakes from before the generators' update."""
        config = self.config
        generator = Phase(
            name="generator", trains=("G_A", "G_B"), loss=self.generator_loss, every=config.discriminator_steps
        )
        discriminator = Phase(name="discriminator", trains=("D_A", "D_B"), loss=self.discriminator_loss)
        if config.penalty == "none":
            return [generator, discriminator]
        penalty = replace(discriminator, name="penalty", loss=self.penalty_loss, every=config.penalty_every)
        return [generator, penalty, discriminator]

    def generator_loss(self, nets: Nets, batch: Batch, carry: Carry) -> Out:
        """Adversarial, cycle (eq. 2) and identity (section 5.2) losses of the generators, and that of lost edges."""
        config, seen = self.config, self._translate(nets, batch)
        judged = {
            way.letter: nets[way.discriminator](self._seen(way.discriminator, seen[way.fake], batch, 0))
            for way in self.ways
        }
        terms = {
            f"adversarial_{letter}": fooling_loss(logits, kind=config.gan) * getattr(config, f"adversarial_{letter}")
            for letter, logits in judged.items()
        }
        cycles = {"A": config.cycle_a, "B": config.cycle_b}
        for way in reversed(self.ways):
            back, real = seen[way.back].float(), batch[way.target]
            terms[f"cycle_{way.target.lower()}"] = F.l1_loss(back, real) * cycles[way.target]
        for way in self.ways:
            if way.same in seen:
                loss = F.l1_loss(seen[way.same].float(), batch[way.target]) * cycles[way.target]
                terms[f"identity_{way.letter}"] = loss * self.identity
        if config.edges:
            for way in self.ways:
                terms[f"edges_{way.letter}"] = lost_edges(seen[way.fake], batch[way.source]) * config.edges
        return Out(total=_sum_of(terms), terms=terms, carry={way.fake: seen[way.fake].float() for way in self.ways})

    def penalty_loss(self, nets: Nets, batch: Batch, carry: Carry) -> Out:
        """The penalty alone, on the images that the discriminators see in this step, but for the pool."""
        fakes = self._fakes(nets, batch, carry)
        terms = {
            f"penalty_{way.letter}": self.config.penalty_term(
                nets[way.discriminator],
                real=self._seen(way.discriminator, batch[way.target], batch, 2),
                fake=self._seen(way.discriminator, fakes[way.fake], batch, 1),
                mix=None if self.config.penalty == "r1" else batch["uniform"][4 + way.number],
            )
            for way in self.ways
        }
        return Out(total=_sum_of(terms), terms=terms, carry=fakes)

    def discriminator_loss(self, nets: Nets, batch: Batch, carry: Carry) -> Out:
        """Half of real plus fake (section 7.1's slowdown), on fakes from the pool and on untranslated images."""
        uniform, fakes = batch["uniform"], self._fakes(nets, batch, carry)
        pools = {"fake_a": self.pool_a, "fake_b": self.pool_b}
        terms: dict[str, Tensor] = {}
        for way in self.ways:
            role, number = way.discriminator, way.number
            judged = pools[way.fake](fakes[way.fake], uniform[2 * number :][:2])
            weights = None
            if self.untranslated:
                as_it_is = uniform[self.plain_draws + number] < self.untranslated
                judged = torch.where(as_it_is.view(-1, 1, 1, 1), batch[way.source], judged)
                weights = (~as_it_is) / (1 - self.untranslated)
            fake, real = self._seen(role, judged, batch, 1), self._seen(role, batch[way.target], batch, 2)
            terms[way.letter] = self._discriminator_term(
                nets[role], real=real, fake=fake, weights=weights, mix=uniform[4 + number]
            )
        return Out(total=_sum_of(terms), terms=terms)

    def _fakes(self, nets: Nets, batch: Batch, carry: Carry) -> Carry:
        """Those of the generators' phase; made anew in a step without it."""
        if self.ways[0].fake in carry:
            return carry
        with torch.no_grad():
            return {way.fake: nets[way.generator](batch[way.source]).float() for way in reversed(self.ways)}

    def _seen(self, role: str, images: Tensor, batch: Batch, call: int) -> Tensor:
        """The images as the discriminator `role` sees them: made for the generator (0), made (1) or real (2)."""
        judge, count = _JUDGES.index(role), self.augmenter.count
        if not count:
            return images
        first = _DRAWS + (2 * call + judge) * count
        return self.augmenter(images, batch["uniform"][first:][:count])

    def _translate(self, nets: Nets, batch: Batch) -> dict[str, Tensor]:
        """What the generators make, by the names of `OneWay`."""
        g_a, g_b, a, b = nets["G_A"], nets["G_B"], batch["A"], batch["B"]
        seen: dict[str, Tensor] = {}
        if not self.batched:
            cycles = side_by_side(partial(_cycle, g_a, g_b, a), partial(_cycle, g_b, g_a, b))
            (seen["fake_b"], seen["back_a"]), (seen["fake_a"], seen["back_b"]) = cycles
            return seen | ({"same_b": g_a(b), "same_a": g_b(a)} if self.identity else {})
        if self.identity:
            seen["fake_b"], seen["same_b"] = together(g_a, a, b)
            seen["fake_a"], seen["same_a"], seen["back_a"] = together(g_b, b, a, seen["fake_b"])
        else:
            seen["fake_b"] = g_a(a)
            seen["fake_a"], seen["back_a"] = together(g_b, b, seen["fake_b"])
        seen["back_b"] = g_a(seen["fake_a"])
        return seen

    def _discriminator_term(
        self,
        discriminator: nn.Module,
        *,
        real: Tensor,
        fake: Tensor,
        weights: Tensor | None,
        mix: Tensor,
    ) -> Tensor:
        """Half of real plus fake.

        `weights` are those of fakes for heads on trained features. The PatchGAN, which comes last, has none.
        """
        kind = self.config.gan
        on_real, on_fake = (
            together(discriminator, real, fake) if self.batched else (discriminator(real), discriminator(fake))
        )
        loss = gan_loss(on_real, real=True, kind=kind, smoothing=self.config.smoothing)
        if weights is None or isinstance(on_fake, Tensor):
            loss = loss + gan_loss(on_fake, real=False, kind=kind)
        else:
            *by_features, by_pixels = on_fake
            loss = loss + gan_loss(by_features, real=False, kind=kind, weights=weights)
            loss = loss + gan_loss(by_pixels, real=False, kind=kind)
        if kind == "wgangp":
            loss = loss + GRADIENT_PENALTY * gradient_penalty(discriminator, real=real, fake=fake, mix=mix)
        return loss * 0.5


class OneDirection(CycleGANObjective):
    """What the process `number` of two computes of `CycleGANObjective`, with the networks of one direction.

    Each translates its images, they exchange the translations by `swap`, and each translates back what it was given.
    So the gradient of the cycle loss with respect to a translation arises at the other process, which hands it back.
    """

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
        self.ways, self.swap = (_WAYS[number],), swap
        self.owned: Sequence[Owned] = [
            Owned((way.generator, way.discriminator), lambda pool=pool: list(pool.buffers()))
            for way, pool in zip(_WAYS, (self.pool_b, self.pool_a))
        ]

    def phases(self) -> list[Phase]:
        """As of the whole objective."""
        names = {
            "generator": ["adversarial_a", "adversarial_b", "cycle_a", "cycle_b"]
            + (["identity_a", "identity_b"] if self.identity else [])
            + (["edges_a", "edges_b"] if self.config.edges else []),
            "discriminator": ["a", "b"],
            "penalty": ["penalty_a", "penalty_b"],
        }
        return [replace(one, loss=partial(_with_all, one.loss, names[one.name])) for one in super().phases()]

    def _translate(self, nets: Nets, batch: Batch) -> dict[str, Tensor]:
        (way,) = self.ways
        net, source, target = nets[way.generator], batch[way.source], batch[way.target]
        fake, *same = together(net, source, *([target] if self.identity and self.batched else []))
        theirs = traded(fake.float(), (len(target), source.shape[1], *target.shape[2:]), self.swap)
        seen = {way.fake: fake, way.back: net(theirs)}
        if self.identity:
            seen[way.same] = same[0] if self.batched else net(target)
        return seen


def _cycle(there: nn.Module, back: nn.Module, real: Tensor) -> tuple[Tensor, Tensor]:
    fake = there(real)
    return fake, back(fake)


def _sum_of(terms: dict[str, Tensor]) -> Tensor:
    """The sum of all, in their order."""
    first, *rest = terms.values()
    for term in rest:
        first = first + term
    return first


def _with_all(loss: Callable[[Nets, Batch, Carry], Out], names: Sequence[str], *given: Any) -> Out:
    """What `loss` gives, with 0 for those terms that it lacks."""
    out = loss(*given)
    nothing = out.total.new_zeros(())
    return replace(out, terms={name: out.terms.get(name, nothing) for name in names})
