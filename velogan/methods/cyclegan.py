"""CycleGAN (Zhu et al. 2017): two generators, two discriminators, cycle and identity consistency.

Roles follow the reference implementation: `G_A` maps A to B, `G_B` maps B to A; `D_A` classifies images of
domain B, `D_B` images of domain A.
"""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from velogan.methods.base import InferenceGenerators, Role, Spec
from velogan.methods.image_gan import DIRECTIONS, DirectionSpec, ImageGAN, ImageGANObjective, Shapes, sum_terms
from velogan.networks.build import NetworkFactory
from velogan.objectives.base import LossOutput, Phase, PhaseCache, batched_forward, run_branches
from velogan.objectives.losses import edge_loss, generator_adversarial_loss
from velogan.types import Batch, Decision, Direction, Letter, Nets, domains_of


class CycleGAN(ImageGAN):
    """Generators G_A (A to B) and G_B (B to A), and discriminators D_A (of domain B) and D_B (of domain A)."""

    kind = "cyclegan"
    summary = "two generators and two discriminators, cycle and identity consistency"
    splits_loss_by_domain = True

    adversarial_a: float = Field(default=1.0, ge=0, description="Weight of the adversarial loss of G_A, by D_A.")
    adversarial_b: float = Field(default=1.0, ge=0, description="Weight of the adversarial loss of G_B, by D_B.")
    cycle_a: float = Field(default=10.0, ge=0, description="Weight of |G_B(G_A(a)) - a|.")
    cycle_b: float = Field(default=10.0, ge=0, description="Weight of |G_A(G_B(b)) - b|.")
    identity: float = Field(
        default=0.5,
        ge=0,
        description="Weight of |G_A(b) - b| as a factor of cycle_b (0.5 times 10 is 5), and of |G_B(a) - a| as a "
        "factor of cycle_a: images of the target domain should not change. Increase it against inverted colours, "
        "reduce it against copies of the input. Off if A and B differ in their number of channels.",
    )

    def decisions(self, spec: Spec) -> list[Decision]:
        a, b = spec.channels["A"], spec.channels["B"]
        if a == b:
            return []
        reason = f"channels of domain A: {a}, of domain B: {b}"
        disabled = {"identity loss": self.identity, "source images as fakes": self.source_as_fake_fraction}
        return [Decision(name, "off", reason) for name, weight in disabled.items() if weight]

    def roles(self, spec: Spec, factory: NetworkFactory) -> dict[str, Role]:
        def generator(direction: Direction) -> Role:
            source, target = domains_of(direction)
            channels = {"in_channels": spec.channels[source], "out_channels": spec.channels[target]}
            return Role(net=factory.generator(spec.generators[direction], **channels), is_averaged=True)

        return {
            "G_A": generator("a2b"),
            "G_B": generator("b2a"),
            "D_A": self.build_discriminator(spec, "a2b", factory),
            "D_B": self.build_discriminator(spec, "b2a", factory),
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

    def inference_generators(self, nets: Nets, spec: Spec) -> InferenceGenerators:
        return InferenceGenerators({"a2b": nets["G_A"], "b2a": nets["G_B"]})


class CycleGANObjective(ImageGANObjective):
    """The losses, in two phases: one trains G_A and G_B, the other D_A and D_B; see `ImageGANObjective`.

    If A and B differ in their number of channels, there is no identity loss: G_A cannot take images of B, nor G_B of A.
    Without `batched`, forward passes run in the order of the reference implementation.
    """

    def __init__(self, config: CycleGAN, shapes: Shapes, *, batched: bool = False):
        super().__init__(config, DIRECTIONS, shapes, batched=batched)
        self.config = config
        self.identity = config.identity if shapes["A"][0] == shapes["B"][0] else 0.0

    def phases(self) -> list[Phase]:
        return self.build_phases(("G_A", "G_B"), ("D_A", "D_B"))

    def generator_loss(self, nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        """Compute adversarial, cycle (eq. 2), identity (section 5.2) and edge losses of the generators."""
        config, images = self.config, self._translate_all(nets, batch)
        terms = dict[str, Tensor]()
        cycle_weights = {"A": config.cycle_a, "B": config.cycle_b}
        for direction in self.directions:
            fake = self.augment_for_discriminator(direction, images[direction.fake], batch, "generator")
            loss = generator_adversarial_loss(nets[direction.discriminator](fake), kind=config.gan)
            terms[f"adversarial_{direction.letter}"] = loss * getattr(config, f"adversarial_{direction.letter}")
        for direction in reversed(self.directions):  # cycle_a first, as in the reference
            loss = F.l1_loss(images[direction.reconstruction].float(), batch[direction.target])
            terms[f"cycle_{direction.target.lower()}"] = loss * cycle_weights[direction.target]
        for direction in self.directions:
            if direction.identity in images:
                loss = F.l1_loss(images[direction.identity].float(), batch[direction.target])
                terms[f"identity_{direction.letter}"] = loss * cycle_weights[direction.target] * self.identity
        if config.edges:
            for direction in self.directions:
                loss = edge_loss(images[direction.fake], batch[direction.source])
                terms[f"edges_{direction.letter}"] = loss * config.edges
        fakes = {direction.fake: images[direction.fake].float() for direction in self.directions}
        return LossOutput(loss=sum_terms(terms), terms=terms, cache=fakes)

    def translate(self, nets: Nets, direction: DirectionSpec, images: Tensor) -> Tensor:
        return nets[direction.generator](images)

    def _translate_all(self, nets: Nets, batch: Batch) -> dict[str, Tensor]:
        """Return fakes, reconstructions and identity outputs by their names in `DirectionSpec`."""
        g_a, g_b = nets["G_A"], nets["G_B"]
        a, b = batch["A"], batch["B"]
        images: dict[str, Tensor] = {}
        if not self.batched:
            cycles = run_branches(partial(_cycle, g_a, g_b, a), partial(_cycle, g_b, g_a, b))
            (images["fake_b"], images["rec_a"]), (images["fake_a"], images["rec_b"]) = cycles
            return images | ({"idt_b": g_a(b), "idt_a": g_b(a)} if self.identity else {})
        if self.identity:
            images["fake_b"], images["idt_b"] = batched_forward(g_a, a, b)
            images["fake_a"], images["idt_a"], images["rec_a"] = batched_forward(g_b, b, a, images["fake_b"])
        else:
            images["fake_b"] = g_a(a)
            images["fake_a"], images["rec_a"] = batched_forward(g_b, b, images["fake_b"])
        images["rec_b"] = g_a(images["fake_a"])
        return images


def _cycle(forward_net: nn.Module, backward_net: nn.Module, real: Tensor) -> tuple[Tensor, Tensor]:
    fake = forward_net(real)
    return fake, backward_net(fake)
