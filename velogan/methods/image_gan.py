"""Fields and discriminator losses of methods whose discriminators classify images."""

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
from velogan.methods.base import Role, Spec, discriminator_header
from velogan.networks.build import NetworkFactory
from velogan.objectives.augment import Augmentation, Augmenter
from velogan.objectives.base import LossOutput, Phase, PhaseCache, UniformSlots
from velogan.objectives.pool import FakePool
from velogan.types import Batch, Direction, Letter, Nets, domains_of

Shapes = Mapping[Letter, tuple[int, int, int]]
"""(C, H, W) of images, by domain."""


class ImageGAN(Adversarial):
    """A method whose discriminators classify images."""

    edges: float = Field(
        default=0.0,
        ge=0,
        description="Weight of a loss on edges of the input that the translation lacks, regardless of brightness and "
        "colours. It preserves shapes: an edge may become faint, or its dark side bright, and flat areas may get new "
        "structure.",
    )
    source_as_fake_fraction: float = Field(
        default=0.0,
        ge=0,
        le=0.5,
        description="Fraction of the PatchGAN's fakes that is replaced by unchanged images of the source domain, so "
        "that copying the input is penalised. Heads on pretrained features ignore them. Off if A and B differ in their "
        "number of channels.",
    )
    augment: tuple[Augmentation, ...] = Field(
        default=(),
        description="Random augmentation of all images that a discriminator gets, real and fake: colour, shift, "
        "cutout. It helps with few images and in short runs.",
    )
    augment_probability: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Fraction of images that `augment` changes. Set less than 1 if discriminators learn too slowly.",
    )

    @model_validator(mode="after")
    def _check_augment(self) -> ImageGAN:
        if self.augment_probability != 1 and not self.augment:
            raise ValueError(
                f"augment_probability={self.augment_probability} has no effect without augment: set "
                "augment=colour,shift, or leave it out"
            )
        return self

    def check(self, spec: Spec) -> None:
        if self.source_as_fake_fraction and any(
            config.network == "projected" for config in spec.discriminators.values()
        ):
            raise ValueError(
                f"method.source_as_fake_fraction={self.source_as_fake_fraction:g} is for PatchGANs, and "
                "discriminator.network=projected has none: set method.source_as_fake_fraction=0, or "
                "discriminator.network=projected+basic"
            )

    def fakes(self, cache: PhaseCache) -> Mapping[Direction, Tensor]:
        """Return the translations in the cache of the phase `generator`, by direction."""
        raise NotImplementedError

    def shapes(self, spec: Spec, shape: tuple[int, int]) -> Shapes:
        """Return (C, H, W) of images of each domain, for `shape` (H, W)."""
        return {letter: (channels, *shape) for letter, channels in spec.channels.items()}

    def build_discriminator(self, spec: Spec, direction: Direction, factory: NetworkFactory) -> Role:
        """Build the discriminator of a direction's translations, as a `Role`."""
        config, (_, target) = spec.discriminators[direction], domains_of(direction)
        channels = spec.channels[target]
        return Role(
            net=factory.discriminator(config, in_channels=channels),
            header=discriminator_header(config, in_channels=channels),
            real_domain=target,
        )


@dataclass(frozen=True)
class DirectionSpec:
    """The names of one direction's networks, images and loss terms.

    `letter`: suffix of its loss terms. `fake`, `reconstruction`, `identity`: names of its generator's outputs for real
    images of the source domain, for fakes of the source domain (the cycle), and for real images of the target domain.
    """

    letter: Literal["a", "b"]
    generator: str
    discriminator: str
    source: Letter
    target: Letter
    fake: str
    reconstruction: str
    identity: str


DIRECTIONS = (
    DirectionSpec("a", "G_A", "D_A", source="A", target="B", fake="fake_b", reconstruction="rec_b", identity="idt_b"),
    DirectionSpec("b", "G_B", "D_B", source="B", target="A", fake="fake_a", reconstruction="rec_a", identity="idt_a"),
)


class ImageGANObjective:
    """Discriminator losses of methods whose discriminators classify images. Subclasses add the generator loss.

    `directions`: the directions to train. `shapes`: (C, H, W) of fakes, for the pools; if C differs, source images do
    not serve as fakes. `batched`: run a network's passes as one batch, which is equivalent with per-sample norms.
    """

    def __init__(self, config: ImageGAN, directions: Sequence[DirectionSpec], shapes: Shapes, *, batched: bool = False):
        self.config, self.directions = config, directions
        self.batched = batched
        self.augmenter = Augmenter(config.augment, config.augment_probability)
        self.source_as_fake_fraction = config.source_as_fake_fraction if shapes["A"][0] == shapes["B"][0] else 0.0
        self.pools = {f"fake_{letter.lower()}": FakePool(config.pool_size, shape) for letter, shape in shapes.items()}
        self.state: nn.Module = nn.ModuleDict(self.pools)
        self.slots = UniformSlots()
        for direction in DIRECTIONS:
            self.slots.add(f"pool {direction.letter}", 2)
        self.slots.add("unused", 2)  # so that a seed draws the same augmentation as in recorded runs
        for purpose in ("generator", "fake", "real"):
            for direction in DIRECTIONS:
                self.slots.add(f"augment {purpose} {direction.letter}", self.augmenter.num_uniforms)
        if self.source_as_fake_fraction:
            for direction in DIRECTIONS:
                self.slots.add(f"source as fake {direction.letter}", 1)
        self.num_uniforms: Mapping[str, int] = {"train": self.slots.num_uniforms}

    def generator_loss(self, nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        """Compute the generators' loss; cache the translations under the names `DirectionSpec.fake`."""
        raise NotImplementedError

    def translate(self, nets: Nets, direction: DirectionSpec, images: Tensor) -> Tensor:
        """Translate `images`, `(B, C, H, W)` of the direction's source domain."""
        raise NotImplementedError

    def build_phases(self, generators: tuple[str, ...], discriminators: tuple[str, ...]) -> list[Phase]:
        """Build the phases: generators first, so that discriminators get fakes from before the generators' update."""
        return [
            Phase(name="generator", trains=generators, loss=self.generator_loss),
            Phase(name="discriminator", trains=discriminators, loss=self.discriminator_loss),
        ]

    def discriminator_loss(self, nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        """Compute the mean of real and fake loss (Zhu et al. 2017, sec. 7.1) of each discriminator, and their sum."""
        fakes = self._fakes(nets, batch, cache)
        terms: dict[str, Tensor] = {}
        for direction in self.directions:
            pool_draws = self.slots.rows(batch, f"pool {direction.letter}")
            fake, weights = self.pools[direction.fake](fakes[direction.fake], pool_draws), None
            if self.source_as_fake_fraction:
                (draw,) = self.slots.rows(batch, f"source as fake {direction.letter}")
                is_source = draw < self.source_as_fake_fraction
                fake = torch.where(is_source.view(-1, 1, 1, 1), batch[direction.source], fake)
                weights = (~is_source) / (1 - self.source_as_fake_fraction)
            augmented_fake = self.augment_for_discriminator(direction, fake, batch, "fake")
            real = self.augment_for_discriminator(direction, batch[direction.target], batch, "real")
            terms[direction.letter] = self.config.discriminator_loss(
                nets[direction.discriminator], real=real, fake=augmented_fake, batched=self.batched, weights=weights
            )
        return LossOutput(loss=sum_terms(terms), terms=terms)

    def _fakes(self, nets: Nets, batch: Batch, cache: PhaseCache) -> PhaseCache:
        """Return the fakes that the generators' phase cached; translate again if another process runs that phase."""
        if self.directions[0].fake in cache:
            return cache
        with torch.no_grad():
            return {
                direction.fake: self.translate(nets, direction, batch[direction.source]).float()
                for direction in reversed(self.directions)
            }

    def augment_for_discriminator(
        self, direction: DirectionSpec, images: Tensor, batch: Batch, purpose: Literal["generator", "fake", "real"]
    ) -> Tensor:
        """Augment images for a discriminator; `direction` and `purpose` select the random numbers of `batch`."""
        if not self.augmenter.kinds:
            return images
        return self.augmenter(images, self.slots.rows(batch, f"augment {purpose} {direction.letter}"))


def sum_terms(terms: dict[str, Tensor]) -> Tensor:
    """Return the sum of loss terms, added in order. Raises ValueError if there are none."""
    if not terms:
        raise ValueError("method: all weights of a network's loss are 0; set one of them above 0")
    return reduce(add, terms.values())
