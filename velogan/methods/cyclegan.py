"""CycleGAN (Zhu et al. 2017): two generators, two discriminators, cycle and identity consistency.

Roles follow the reference implementation: `G_A` maps A to B, `G_B` maps B to A; `D_A` judges images of domain B,
`D_B` images of domain A.
"""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from velogan.methods.base import InferenceGenerators, NetworkFactory, Role, Spec
from velogan.methods.image_gan import DIRECTIONS, DirectionSpec, ImageGAN, ImageGANObjective, Shapes, sum_of
from velogan.objectives.base import LossOutput, Phase, PhaseCache, batched_forward, run_branches
from velogan.objectives.losses import edge_loss, generator_adversarial_loss
from velogan.types import Batch, Decision, Direction, Letter, Nets, domains_of


class CycleGAN(ImageGAN):
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

    def decisions(self, spec: Spec) -> list[Decision]:
        a, b = spec.channels["A"], spec.channels["B"]
        if a == b:
            return []
        unlike = f"channels of domain A: {a}, of domain B: {b}"
        off = {
            "identity loss": self.identity,
            "untranslated images for discriminators": self.source_as_fake_fraction,
        }
        return [Decision(name, "off", unlike) for name, wanted in off.items() if wanted]

    def roles(self, spec: Spec, make: NetworkFactory) -> dict[str, Role]:
        def generator(direction: Direction) -> Role:
            source, target = domains_of(direction)
            channels = {"in_channels": spec.channels[source], "out_channels": spec.channels[target]}
            return Role(net=make.generator(spec.generators[direction], **channels), averaged=True)

        return {
            "G_A": generator("a2b"),
            "G_B": generator("b2a"),
            "D_A": self.discriminator(spec, "a2b", make),
            "D_B": self.discriminator(spec, "b2a", make),
        }

    def objective(self, spec: Spec, *, shape: tuple[int, int], batched: bool) -> CycleGANObjective:
        return CycleGANObjective(self, self.shapes(spec, shape), batched=batched)

    def fakes(self, cache: PhaseCache) -> dict[Direction, Tensor]:
        return {"a2b": cache["fake_b"], "b2a": cache["fake_a"]}

    def domain_of(self, term: str) -> Letter | None:
        name, _, letter = term.rpartition("_")
        if name not in ("adversarial", "cycle", "identity", "edges"):
            return None
        return "A" if (letter == "a") != (name == "identity") else "B"

    def views(self, nets: Nets, spec: Spec) -> InferenceGenerators:
        return InferenceGenerators({"a2b": nets["G_A"], "b2a": nets["G_B"]})


class CycleGANObjective(ImageGANObjective):
    """The losses as two phases over the roles G_A, G_B, D_A, D_B.

    Where the domains differ in C there is no identity loss, which feeds each generator the other domain's images.
    Without `batched` passes are in the reference's order. For the rest see `ImageGANObjective`.
    """

    def __init__(self, config: CycleGAN, shapes: Shapes, *, batched: bool = False):
        super().__init__(config, DIRECTIONS, shapes, batched=batched)
        self.config = config
        self.identity = config.identity if shapes["A"][0] == shapes["B"][0] else 0.0

    def phases(self) -> list[Phase]:
        """Of both directions."""
        return self.build_phases(("G_A", "G_B"), ("D_A", "D_B"))

    def generator_loss(self, nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        """Adversarial, cycle (eq. 2) and identity (section 5.2) losses of the generators, and that of lost edges."""
        config, seen = self.config, self._translate(nets, batch)
        judged = {
            direction.letter: nets[direction.discriminator](
                self.augment_for_discriminator(direction, seen[direction.fake], batch, 0)
            )
            for direction in self.directions
        }
        terms = {
            f"adversarial_{letter}": generator_adversarial_loss(logits, kind=config.gan)
            * getattr(config, f"adversarial_{letter}")
            for letter, logits in judged.items()
        }
        cycles = {"A": config.cycle_a, "B": config.cycle_b}
        for direction in reversed(self.directions):
            back, real = seen[direction.reconstruction].float(), batch[direction.target]
            terms[f"cycle_{direction.target.lower()}"] = F.l1_loss(back, real) * cycles[direction.target]
        for direction in self.directions:
            if direction.identity in seen:
                loss = F.l1_loss(seen[direction.identity].float(), batch[direction.target]) * cycles[direction.target]
                terms[f"identity_{direction.letter}"] = loss * self.identity
        if config.edges:
            for direction in self.directions:
                terms[f"edges_{direction.letter}"] = (
                    edge_loss(seen[direction.fake], batch[direction.source]) * config.edges
                )
        return LossOutput(
            loss=sum_of(terms),
            logged=terms,
            cache={direction.fake: seen[direction.fake].float() for direction in self.directions},
        )

    def translated(self, nets: Nets, direction: DirectionSpec, images: Tensor) -> Tensor:
        return nets[direction.generator](images)

    def _translate(self, nets: Nets, batch: Batch) -> dict[str, Tensor]:
        """What the generators make, by the names of `DirectionSpec`."""
        g_a, g_b, a, b = nets["G_A"], nets["G_B"], batch["A"], batch["B"]
        seen: dict[str, Tensor] = {}
        if not self.batched:
            cycles = run_branches(partial(_cycle, g_a, g_b, a), partial(_cycle, g_b, g_a, b))
            (seen["fake_b"], seen["rec_a"]), (seen["fake_a"], seen["rec_b"]) = cycles
            return seen | ({"idt_b": g_a(b), "idt_a": g_b(a)} if self.identity else {})
        if self.identity:
            seen["fake_b"], seen["idt_b"] = batched_forward(g_a, a, b)
            seen["fake_a"], seen["idt_a"], seen["rec_a"] = batched_forward(g_b, b, a, seen["fake_b"])
        else:
            seen["fake_b"] = g_a(a)
            seen["fake_a"], seen["rec_a"] = batched_forward(g_b, b, seen["fake_b"])
        seen["rec_b"] = g_a(seen["fake_a"])
        return seen


def _cycle(there: nn.Module, back: nn.Module, real: Tensor) -> tuple[Tensor, Tensor]:
    fake = there(real)
    return fake, back(fake)
