"""CycleGAN (Zhu et al. 2017): two generators, two discriminators, cycle and identity consistency.

Roles follow the reference implementation: `G_A` maps A to B, `G_B` maps B to A; `D_A` judges images of domain B,
`D_B` images of domain A.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from velogan.methods.adversarial import Adversarial
from velogan.methods.base import Make, Note, Role, Spec, Views, discriminator_header, ends
from velogan.objectives.base import Carry, Out, Owned, Phase, side_by_side, together
from velogan.objectives.directions import HalfObjective, Swap, traded
from velogan.objectives.losses import Logits, fooling_loss, gan_loss, gradient_penalty, lost_edges
from velogan.objectives.pool import FakePool
from velogan.types import Batch, Direction, Letter, Nets


class CycleGAN(Adversarial):
    """Generators G_A (A to B) and G_B (B to A); discriminators D_A of domain B, D_B of domain A; images a and b."""

    kind = "cyclegan"
    summary = "two generators and two discriminators, cycle and identity consistency"

    adversarial_a: float = Field(default=1.0, ge=0, description="Weight of the adversarial loss of G_A, by D_A.")
    adversarial_b: float = Field(default=1.0, ge=0, description="Weight of the adversarial loss of G_B, by D_B.")
    cycle_a: float = Field(default=10.0, ge=0, description="Weight of |G_B(G_A(a)) - a|.")
    cycle_b: float = Field(default=10.0, ge=0, description="Weight of |G_A(G_B(b)) - b|.")
    identity_a: float = Field(
        default=0.5,
        ge=0,
        description="Weight of |G_A(b) - b|, as a factor of cycle_b: 0.5 times 10 is 5. It asks that images of B stay "
        "as they are. Left out where A and B differ in their number of channels.",
    )
    identity_b: float = Field(default=0.5, ge=0, description="The same for |G_B(a) - a|, as a factor of cycle_a.")
    edges_a: float = Field(
        default=0.0,
        ge=0,
        description="Weight of the edges of a that G_A(a) has lost, whatever the brightness and the colours. It keeps "
        "shapes, and does not hinder new things where a is flat.",
    )
    edges_b: float = Field(default=0.0, ge=0, description="The same for b and G_B(b).")
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
    gradient_penalty: float = Field(default=10.0, ge=0, description="Weight of the gradient penalty; wgangp only.")

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

    def notes(self, spec: Spec) -> list[Note]:
        a, b = spec.channels["A"], spec.channels["B"]
        if a == b:
            return []
        unlike = f"channels of domain A: {a}, of domain B: {b}"
        off = {
            "identity loss": self.identity_a or self.identity_b,
            "untranslated images for discriminators": self.untranslated,
        }
        return [Note(name, "off", unlike) for name, wanted in off.items() if wanted]

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

    @property
    def has_halves(self) -> bool:
        return True

    def half(self, spec: Spec, *, shape: tuple[int, int], batched: bool, number: int, swap: Swap) -> HalfObjective:
        a, b = ((spec.channels[letter], *shape) for letter in ("A", "B"))
        return OneDirection(self, shape_a=a, shape_b=b, batched=batched, number=number, swap=swap)

    def views(self, nets: Nets, spec: Spec) -> Views:
        return Views({"a2b": nets["G_A"], "b2a": nets["G_B"]})


_DRAWS = 6
"""Uniform numbers for an image without augmentation: two for each pool, one for each gradient penalty."""


@dataclass(frozen=True)
class Half:
    """The networks of one direction and what they are given; `letter` is that of its networks and of its terms."""

    number: int
    letter: str
    generator: str
    discriminator: str
    source: Letter
    target: Letter
    fake: str


_HALVES = (
    Half(0, "a", "G_A", "D_A", source="A", target="B", fake="fake_b"),
    Half(1, "b", "G_B", "D_B", source="B", target="A", fake="fake_a"),
)
_JUDGES = tuple(half.discriminator for half in _HALVES)


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
        self.halves = _HALVES
        self.augmenter = config.augmenter(judges=2)
        same = shape_a[0] == shape_b[0]
        self.untranslated = config.untranslated if same else 0.0
        self.plain_draws = _DRAWS + 6 * self.augmenter.count
        self.draws: Mapping[str, int] = {"train": self.plain_draws + (2 if self.untranslated else 0)}
        self.identity_a = config.identity_a if same else 0.0
        self.identity_b = config.identity_b if same else 0.0
        self.pool_a = FakePool(config.pool_size, shape_a)
        self.pool_b = FakePool(config.pool_size, shape_b)
        self.state: nn.Module = nn.ModuleDict(
            {"fake_a": self.pool_a, "fake_b": self.pool_b, "augmenter": self.augmenter}
        )

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
        """Adversarial, cycle (eq. 2) and identity (section 5.2) losses of both generators, and that of lost edges."""
        config, a, b = self.config, batch["A"], batch["B"]
        seen = self._translate(nets, a, b)
        judged_b = nets["D_A"](self._seen("D_A", seen["fake_b"], batch, 0))
        judged_a = nets["D_B"](self._seen("D_B", seen["fake_a"], batch, 0))
        terms = {
            "adversarial_a": fooling_loss(judged_b, kind=config.gan) * config.adversarial_a,
            "adversarial_b": fooling_loss(judged_a, kind=config.gan) * config.adversarial_b,
            "cycle_a": F.l1_loss(seen["back_a"].float(), a) * config.cycle_a,
            "cycle_b": F.l1_loss(seen["back_b"].float(), b) * config.cycle_b,
        }
        if self.identity_a:
            terms["identity_a"] = F.l1_loss(seen["same_b"].float(), b) * config.cycle_b * self.identity_a
        if self.identity_b:
            terms["identity_b"] = F.l1_loss(seen["same_a"].float(), a) * config.cycle_a * self.identity_b
        if config.edges_a:
            terms["edges_a"] = lost_edges(seen["fake_b"], a) * config.edges_a
        if config.edges_b:
            terms["edges_b"] = lost_edges(seen["fake_a"], b) * config.edges_b
        carry = {"fake_a": seen["fake_a"].float(), "fake_b": seen["fake_b"].float()}
        return Out(total=_sum_of(terms), terms=terms, carry=carry)

    def penalty_loss(self, nets: Nets, batch: Batch, carry: Carry) -> Out:
        """The penalty alone, on the images that the discriminators see in this step, but for the pool."""
        fakes = self._fakes(nets, batch, carry)
        terms = {
            f"penalty_{half.letter}": self.config.penalty_term(
                nets[half.discriminator],
                real=self._seen(half.discriminator, batch[half.target], batch, 2),
                fake=self._seen(half.discriminator, fakes[half.fake], batch, 1),
                mix=batch["uniform"][4 + half.number],
            )
            for half in self.halves
        }
        return Out(total=_sum_of(terms), terms=terms, carry=fakes)

    def discriminator_loss(self, nets: Nets, batch: Batch, carry: Carry) -> Out:
        """Half of real plus fake (section 7.1's slowdown), on fakes from the pool and on untranslated images."""
        uniform, fakes = batch["uniform"], self._fakes(nets, batch, carry)
        pools = {"fake_a": self.pool_a, "fake_b": self.pool_b}
        terms: dict[str, Tensor] = {}
        shown: dict[str, Tensor] = {}
        for half in self.halves:
            role, number = half.discriminator, half.number
            judged = pools[half.fake](fakes[half.fake], uniform[2 * number :][:2])
            weights = None
            if self.untranslated:
                as_it_is = uniform[self.plain_draws + number] < self.untranslated
                judged = torch.where(as_it_is.view(-1, 1, 1, 1), batch[half.source], judged)
                weights = (~as_it_is) / (1 - self.untranslated)
            fake, real = self._seen(role, judged, batch, 1), self._seen(role, batch[half.target], batch, 2)
            terms[half.letter] = self._discriminator_term(
                nets, role, shown, real=real, fake=fake, weights=weights, mix=uniform[4 + number]
            )
        return Out(total=_sum_of(terms), terms={**terms, **shown})

    def _fakes(self, nets: Nets, batch: Batch, carry: Carry) -> Carry:
        """Those of the generators' phase; made anew in a step without it."""
        if self.halves[0].fake in carry:
            return carry
        with torch.no_grad():
            return {half.fake: nets[half.generator](batch[half.source]).float() for half in reversed(self.halves)}

    def _seen(self, role: str, images: Tensor, batch: Batch, call: int) -> Tensor:
        """The images as the discriminator `role` sees them: made for the generator (0), made (1) or real (2)."""
        judge, count = _JUDGES.index(role), self.augmenter.count
        if not count:
            return images
        first = _DRAWS + (2 * call + judge) * count
        return self.augmenter(images, batch["uniform"][first:][:count], judge=judge)

    def _translate(self, nets: Nets, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        g_a, g_b = nets["G_A"], nets["G_B"]
        seen: dict[str, Tensor] = {}
        if not self.batched:
            cycles = side_by_side(partial(_cycle, g_a, g_b, a), partial(_cycle, g_b, g_a, b))
            (seen["fake_b"], seen["back_a"]), (seen["fake_a"], seen["back_b"]) = cycles
            if self.identity_a:
                seen["same_b"] = g_a(b)
            if self.identity_b:
                seen["same_a"] = g_b(a)
            return seen
        seen["fake_b"], *same_b = together(g_a, a, *([b] if self.identity_a else []))
        same_a = [a] if self.identity_b else []
        seen["fake_a"], *same_a, seen["back_a"] = together(g_b, b, *same_a, seen["fake_b"])
        seen |= {f"same_{letter}": same for letter, found in (("b", same_b), ("a", same_a)) for same in found}
        seen["back_b"] = g_a(seen["fake_a"])
        return seen

    def _discriminator_term(
        self,
        nets: Nets,
        role: str,
        shown: dict[str, Tensor],
        *,
        real: Tensor,
        fake: Tensor,
        weights: Tensor | None,
        mix: Tensor,
    ) -> Tensor:
        """Half of real plus fake; adds what else the log shows to `shown`.

        `weights` are those of fakes for heads on trained features. The PatchGAN, which comes last, has none.
        """
        discriminator, kind = nets[role], self.config.gan
        on_real: Logits
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
        adapted = self.augmenter.adapt(on_real, judge=_JUDGES.index(role))
        shown |= {f"{name}_{role[-1].lower()}": value for name, value in adapted.items()}
        if kind == "wgangp":
            loss = loss + self.config.gradient_penalty * gradient_penalty(discriminator, real=real, fake=fake, mix=mix)
        return loss * 0.5


class OneDirection(CycleGANObjective):
    """The half of `CycleGANObjective` that the process `number` of two computes, with the networks of one direction.

    Each translates its images, they exchange the translations by `swap`, and each translates back what it was given.
    So the gradient of the cycle loss with respect to a translation arises at the other process, which hands it back.
    All else is at home.
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
        self.halves, self.swap = (_HALVES[number],), swap
        pools = (self.pool_b, self.pool_a)
        self.owned: Sequence[Owned] = [
            Owned(
                (half.generator, half.discriminator),
                lambda pool=pool, half=half: [*pool.buffers(), *self.augmenter.of_judge(half.number)],
            )
            for half, pool in zip(_HALVES, pools)
        ]

    def phases(self) -> list[Phase]:
        """As of the whole objective."""
        config, adaptive = self.config, self.augmenter.fixed is None
        names = {
            "generator": ["adversarial_a", "adversarial_b", "cycle_a", "cycle_b"]
            + ["identity_a"] * bool(self.identity_a)
            + ["identity_b"] * bool(self.identity_b)
            + ["edges_a"] * bool(config.edges_a)
            + ["edges_b"] * bool(config.edges_b),
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
        if edges := {"a": config.edges_a, "b": config.edges_b}[mine]:
            terms[f"edges_{mine}"] = lost_edges(fake, source) * edges
        return Out(total=_sum_of(terms), terms=terms, carry={half.fake: fake.float()})


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
