"""Contrastive translation (CUT, "Contrastive Learning for Unpaired Image-to-Image Translation", Park et al. 2020).

One generator and one discriminator per direction. There is no reverse generator: the generator's own encoder must match
each patch of a translation with the input patch at the same location. Roles: `E_A` is the first part of the generator
from A to B, to its middle block, and `R_A` the rest; `H_A` are the heads that compare patches; `D_A` judges images of
domain B. `E_B`, `R_B`, `H_B` and `D_B` are there for the other direction where both are trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from velogan.methods.base import InferenceGenerators, NetworkFactory, Role, Spec
from velogan.methods.image_gan import DIRECTIONS, DirectionSpec, ImageGAN, ImageGANObjective, Shapes, sum_of
from velogan.networks.generators import compose
from velogan.networks.outputs import KeepGenerator, MaskGenerator, apply_mask
from velogan.networks.tapped import FeatureEncoder, PatchHeads, split_for_features
from velogan.objectives.base import LossOutput, Phase, PhaseCache, batched_forward
from velogan.objectives.losses import edge_loss, gather_at, generator_adversarial_loss, patch_nce_loss, sample_locations
from velogan.types import Batch, Direction, Nets, domains_of

PATCHES = 256
"""Patches of an image that are compared at each tap."""

TAPS = 5
"""Pixels, and at most so many less one of the generator's features."""


class Contrast(ImageGAN):
    """One generator and one discriminator a direction; patches of a translation are those of its input; images a, b."""

    kind = "contrast"
    summary = "a generator and a discriminator, and patches that stay themselves"
    searchable = False

    direction: Literal["a2b", "both"] = Field(
        default="a2b", description="a2b: A to B alone; both: B to A as well, by networks of its own."
    )
    contrast: float = Field(
        default=1.0,
        gt=0,
        description="Weight of the contrast: each patch of a translation is to be told as the patch of its input at "
        "the same place, among 256 of these, at five depths of the generator. More keeps more of the input.",
    )
    identity: float = Field(
        default=1.0,
        ge=0,
        description="The contrast of G(b) with b, as a factor of `contrast`: images of the target domain stay as they "
        "are. 0 halves the generator's work; the paper's fast variant then has contrast=10.",
    )
    pool_size: int = Field(
        default=0, ge=0, description="Earlier fakes kept per discriminator, which sees some of them again."
    )

    @property
    def directions(self) -> tuple[Direction, ...]:
        return ("a2b", "b2a") if self.direction == "both" else ("a2b",)

    def check(self, spec: Spec) -> None:
        super().check(spec)
        for direction in self.directions:
            generator = spec.generators[direction]
            if generator.network != "resnet":
                raise ValueError(
                    f"generator.network={generator.network} has no blocks between which method=contrast could look: "
                    "set generator.network=resnet"
                )
            if generator.blocks == 0:
                raise ValueError("generator.blocks=0 leaves method=contrast no block to look at: set 1 or more")
            if generator.output == "change":
                raise ValueError(
                    "generator.output=change decodes twice, which method=contrast does not: set "
                    "generator.output=image, mask or keep"
                )
        spec.check_equal_channels(
            "method=contrast puts translations through the encoder of their inputs (the preset auto takes any channels)"
        )

    def roles(self, spec: Spec, make: NetworkFactory) -> dict[str, Role]:
        roles: dict[str, Role] = {}
        for direction, of in self._direction_specs:
            source, target = domains_of(direction)
            config, letter = spec.generators[direction], of.letter.upper()
            whole = make.generator(config, in_channels=spec.channels[source], out_channels=spec.channels[target])
            before, behind = split_for_features(whole.net if isinstance(whole, MaskGenerator) else whole)
            widths = [spec.channels[source], *before.widths]
            roles[f"E_{letter}"] = Role(net=before, averaged=True)
            roles[f"R_{letter}"] = Role(net=behind, averaged=True)
            roles[f"H_{letter}"] = Role(net=PatchHeads(widths), header={"network": "patch_heads", "widths": widths})
            roles[of.discriminator] = self.discriminator(spec, direction, make)
        return roles

    @property
    def _direction_specs(self) -> list[tuple[Direction, DirectionSpec]]:
        return list(zip(self.directions, DIRECTIONS))

    def objective(self, spec: Spec, *, shape: tuple[int, int], batched: bool) -> ContrastObjective:
        masks = {of.letter: spec.generators[direction].output == "mask" for direction, of in self._direction_specs}
        return ContrastObjective(self, masks, self.shapes(spec, shape), batched=batched)

    def fakes(self, cache: PhaseCache) -> dict[Direction, Tensor]:
        return {direction: cache[of.fake] for direction, of in self._direction_specs}

    def views(self, nets: Nets, spec: Spec) -> InferenceGenerators:
        return InferenceGenerators(
            {direction: _whole(nets, of, spec.generators[direction].output) for direction, of in self._direction_specs}
        )


_FORMS = {"mask": MaskGenerator, "keep": KeepGenerator}


def _whole(nets: Nets, direction: DirectionSpec, output: str) -> nn.Module:
    letter = direction.letter.upper()
    before = nets[f"E_{letter}"]
    assert isinstance(before, FeatureEncoder)
    net = compose(*before.stages, nets[f"R_{letter}"])
    return _FORMS[output](net).train(before.training) if output in _FORMS else net


Taps = tuple[Tensor, ...]
"""An image batch `(B, C, H, W)` and what the first part of the generator makes of it, stage by stage."""


class ContrastObjective(ImageGANObjective):
    """The losses as phases over the roles E, R, H and D of each direction.

    `masks`: by the letter of a direction, whether its generator makes a mask. For the rest see `ImageGANObjective`.
    """

    def __init__(self, config: Contrast, masks: Mapping[str, bool], shapes: Shapes, *, batched: bool = False):
        super().__init__(config, DIRECTIONS[: len(masks)], shapes, batched=batched)
        self.config, self.masks = config, masks
        self._places = self.draws["train"]
        self.draws = {"train": self._places + TAPS * PATCHES}

    def phases(self) -> list[Phase]:
        """Of all directions."""
        trained = tuple(f"{part}_{direction.letter.upper()}" for direction in self.directions for part in "ERH")
        return self.build_phases(trained, tuple(direction.discriminator for direction in self.directions))

    def generator_loss(self, nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        """Adversarial loss, the contrast of translations and of what becomes of the target (eq. 5), lost edges.

        The two contrasts share the weight, as in the authors' code.
        """
        config, terms, fakes = self.config, dict[str, Tensor](), dict[str, Tensor]()
        for direction in self.directions:
            names = {"contrast": 1.0} | ({"identity": config.identity} if config.identity else {})
            given = [batch[direction.source], batch[direction.target]][: len(names)]
            made, before = self._translate(nets, direction, given)
            after = self._taps(nets, direction, made)
            fake = made[0]
            verdict = nets[direction.discriminator](self.augment_for_discriminator(direction, fake, batch, 0))
            terms[f"adversarial_{direction.letter}"] = generator_adversarial_loss(verdict, kind=config.gan)
            for (name, weight), one, other in zip(names.items(), after, before, strict=True):
                loss = self._contrast(nets, direction, one, other, batch)
                terms[f"{name}_{direction.letter}"] = loss * (config.contrast * weight / (1 + config.identity))
            if config.edges:
                terms[f"edges_{direction.letter}"] = edge_loss(fake, batch[direction.source]) * config.edges
            fakes[direction.fake] = fake.float()
        return LossOutput(loss=sum_of(terms), logged=terms, cache=fakes)

    def translated(self, nets: Nets, direction: DirectionSpec, images: Tensor) -> Tensor:
        ((made,), _) = self._translate(nets, direction, [images])
        return made

    def _translate(
        self, nets: Nets, direction: DirectionSpec, images: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Taps]]:
        """What becomes of each batch, and what the first part of the generator saw of it."""
        taps = self._taps(nets, direction, images)
        made = batched_forward(nets[f"R_{direction.letter.upper()}"], *(one[-1] for one in taps), batched=self.batched)
        masks = self.masks[direction.letter]
        return [apply_mask(one, x) if masks else one for one, x in zip(made, images)], taps

    def _taps(self, nets: Nets, direction: DirectionSpec, images: Sequence[Tensor]) -> list[Taps]:
        seen = batched_forward(nets[f"E_{direction.letter.upper()}"], *images, batched=self.batched)
        return [(x, *one) for x, one in zip(images, seen)]

    def _contrast(self, nets: Nets, direction: DirectionSpec, made: Taps, given: Taps, batch: Batch) -> Tensor:
        """The mean over taps of `patch_nce_loss`."""
        heads, uniform = nets[f"H_{direction.letter.upper()}"], batch["uniform"][self._places :]
        drawn = uniform.split(PATCHES)[: len(made)]
        where = [sample_locations(draws, x.shape[2] * x.shape[3]) for draws, x in zip(drawn, made, strict=True)]
        queries = heads([gather_at(x, at) for x, at in zip(made, where)])
        keys = heads([gather_at(x.detach(), at) for x, at in zip(given, where)])
        return torch.stack([patch_nce_loss(one, other) for one, other in zip(queries, keys)]).mean()
