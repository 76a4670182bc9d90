"""What methods have in common whose discriminators judge pictures: their fields, and the discriminators' losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from velogan.methods.adversarial import Adversarial
from velogan.methods.base import NetworkFactory, Role, Spec, discriminator_header
from velogan.objectives.augment import Augmentation, Augmenter
from velogan.objectives.base import LossOutput, Phase, PhaseCache
from velogan.objectives.pool import FakePool
from velogan.types import Batch, Direction, Letter, Nets, domains_of

Shapes = Mapping[Letter, tuple[int, int, int]]
"""The (C, H, W) of images, by domain."""


class ImageGAN(Adversarial):
    """Fields of every method whose discriminators judge pictures."""

    edges: float = Field(
        default=0.0,
        ge=0,
        description="Weight of the edges of an image that its translation has lost, whatever the brightness and the "
        "colours. It keeps shapes: an edge may become faint, or its dark side bright, and where the image is flat "
        "new things may come.",
    )
    source_as_fake_fraction: float = Field(
        default=0.0,
        ge=0,
        le=0.5,
        description="This share of the translations that the PatchGAN of D_A learns to refuse is replaced by images of "
        "A as they are (for D_B: of B). So it does not forget that these are not of its domain, and doing nothing does "
        "not pay. Heads on trained features are not asked about them. Left out where A and B differ in their number of "
        "channels.",
    )
    augment: tuple[Augmentation, ...] = Field(
        default=(),
        description="What is changed at random in all images that a discriminator judges, real and made: colour, "
        "shift, cutout. It helps with few pictures and in short trainings.",
    )
    augment_probability: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="The share of images that `augment` changes: below 1 where discriminators learn too slowly.",
    )

    @model_validator(mode="after")
    def _probability_of_something(self) -> ImageGAN:
        if self.augment_probability != 1 and not self.augment:
            raise ValueError(
                f"augment_probability={self.augment_probability} has nothing to change: set augment=colour,shift, or "
                "leave it out"
            )
        return self

    def check(self, spec: Spec) -> None:
        if self.source_as_fake_fraction and any(one.network == "projected" for one in spec.discriminators.values()):
            raise ValueError(
                f"method.source_as_fake_fraction={self.source_as_fake_fraction:g} is for PatchGANs, and "
                "discriminator.network=projected has none: set method.source_as_fake_fraction=0, or "
                "discriminator.network=projected+basic"
            )

    def shapes(self, spec: Spec, shape: tuple[int, int]) -> Shapes:
        """Of pictures of each domain, where these are of `shape` (H, W)."""
        return {letter: (channels, *shape) for letter, channels in spec.channels.items()}

    def discriminator(self, spec: Spec, direction: Direction, make: NetworkFactory) -> Role:
        """What judges the translations of a direction."""
        config, (_, target) = spec.discriminators[direction], domains_of(direction)
        channels = spec.channels[target]
        return Role(
            net=make.discriminator(config, in_channels=channels),
            header=discriminator_header(config, in_channels=channels),
            real_domain=target,
        )


_DRAWS = 6
"""Uniform numbers per image without augmentation: two for each pool, and two that no loss reads any more.

They stay, so that the same seed gives the same augmentation as in earlier versions."""


@dataclass(frozen=True)
class DirectionSpec:
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
    reconstruction: str
    identity: str


DIRECTIONS = (
    DirectionSpec(
        0, "a", "G_A", "D_A", source="A", target="B", fake="fake_b", reconstruction="rec_b", identity="idt_b"
    ),
    DirectionSpec(
        1, "b", "G_B", "D_B", source="B", target="A", fake="fake_a", reconstruction="rec_a", identity="idt_a"
    ),
)


class ImageGANObjective:
    """Discriminator losses shared by image-space methods. Subclasses add the generator loss.

    `directions` are those that are trained. `shapes` are those of fakes, for the pools; if the domains differ in C,
    discriminators are shown no untranslated images. With `batched`, passes of one network are run together, which is
    exact with per-sample norms; without it, each pass has one image batch.
    """

    def __init__(self, config: ImageGAN, directions: Sequence[DirectionSpec], shapes: Shapes, *, batched: bool = False):
        self.config, self.directions, self.batched = config, directions, batched
        self.augmenter = Augmenter(config.augment, config.augment_probability)
        self.source_as_fake_fraction = config.source_as_fake_fraction if shapes["A"][0] == shapes["B"][0] else 0.0
        self.plain_draws = _DRAWS + 6 * self.augmenter.draws
        self.draws: Mapping[str, int] = {"train": self.plain_draws + (2 if self.source_as_fake_fraction else 0)}
        self.pools = {f"fake_{letter.lower()}": FakePool(config.pool_size, shape) for letter, shape in shapes.items()}
        self.state: nn.Module = nn.ModuleDict(self.pools)

    def generator_loss(self, nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        """Hands on the translations by `DirectionSpec.fake`."""
        raise NotImplementedError

    def translated(self, nets: Nets, direction: DirectionSpec, images: Tensor) -> Tensor:
        """What the generator of `direction` makes of the images of its source."""
        raise NotImplementedError

    def build_phases(self, generators: tuple[str, ...], discriminators: tuple[str, ...]) -> list[Phase]:
        """The phases. Generators first: the discriminators see fakes from before the generators' update."""
        return [
            Phase(name="generator", trains=generators, loss=self.generator_loss),
            Phase(name="discriminator", trains=discriminators, loss=self.discriminator_loss),
        ]

    def discriminator_loss(self, nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        """Half of real plus fake (section 7.1's slowdown), on fakes from the pool and on untranslated images."""
        uniform, fakes = batch["uniform"], self._fakes(nets, batch, cache)
        terms: dict[str, Tensor] = {}
        for direction in self.directions:
            number = direction.number
            judged = self.pools[direction.fake](fakes[direction.fake], uniform[2 * number :][:2])
            weights = None
            if self.source_as_fake_fraction:
                as_it_is = uniform[self.plain_draws + number] < self.source_as_fake_fraction
                judged = torch.where(as_it_is.view(-1, 1, 1, 1), batch[direction.source], judged)
                weights = (~as_it_is) / (1 - self.source_as_fake_fraction)
            fake, real = (
                self.augment_for_discriminator(direction, judged, batch, 1),
                self.augment_for_discriminator(direction, batch[direction.target], batch, 2),
            )
            terms[direction.letter] = self.config.discriminator_term(
                nets[direction.discriminator],
                real=real,
                fake=fake,
                batched=self.batched,
                weights=weights,
            )
        return LossOutput(loss=sum_of(terms), logged=terms)

    def _fakes(self, nets: Nets, batch: Batch, cache: PhaseCache) -> PhaseCache:
        """Those of the generators' phase; translated again if this process does not run that phase."""
        if self.directions[0].fake in cache:
            return cache
        with torch.no_grad():
            return {
                direction.fake: self.translated(nets, direction, batch[direction.source]).float()
                for direction in reversed(self.directions)
            }

    def augment_for_discriminator(self, direction: DirectionSpec, images: Tensor, batch: Batch, call: int) -> Tensor:
        """Augment images for a discriminator; `call`: fakes for the generator (0), fakes (1) or real images (2)."""
        count = self.augmenter.draws
        if not count:
            return images
        first = _DRAWS + (2 * call + direction.number) * count
        return self.augmenter(images, batch["uniform"][first:][:count])


def sum_of(terms: dict[str, Tensor]) -> Tensor:
    """The sum of all, in their order."""
    return reduce(add, terms.values())
