"""Contrastive translation (CUT, "Contrastive Learning for Unpaired Image-to-Image Translation", Park et al. 2020).

One generator and one discriminator per direction. There is no reverse generator: the generator's own encoder must match
each patch of a translation with the input patch at the same location. Roles: `E_A` is the first part of the generator
from A to B, up to its middle block, and `R_A` the rest; `H_A` are the heads that project patches; `D_A` classifies
images of domain B. `E_B`, `R_B`, `H_B` and `D_B` exist if the direction from B to A is trained, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from velogan.methods.base import InferenceGenerators, Role, Spec
from velogan.methods.image_gan import DIRECTIONS, DirectionSpec, ImageGAN, ImageGANObjective, Shapes, sum_terms
from velogan.networks.build import NetworkFactory
from velogan.networks.generators import compose
from velogan.networks.outputs import KeepGenerator, MaskGenerator, apply_mask
from velogan.networks.patch_features import FeatureEncoder, PatchHeads, split_for_features
from velogan.objectives.base import LossOutput, Phase, PhaseCache, batched_forward
from velogan.objectives.losses import edge_loss, gather_at, generator_adversarial_loss, patch_nce_loss, sample_locations
from velogan.types import Batch, Direction, Letter, Nets, domains_of

PATCHES = 256
"""Maximum number of patches that are compared per image and layer."""

MAX_LAYERS = 5
"""Maximum number of layers that are compared: the image itself, and four feature maps of the generator."""


class Contrast(ImageGAN):
    """One generator and one discriminator per direction, and a contrastive loss on patches."""

    kind = "contrast"
    summary = "a generator and a discriminator, and a contrastive loss on patches"
    is_searchable = False

    direction: Literal["a2b", "both"] = Field(
        default="a2b", description="a2b: A to B only; both: B to A as well, with separate networks."
    )
    contrast: float = Field(
        default=1.0,
        gt=0,
        description="Weight of the contrastive loss (PatchNCE): each patch of a translation must match the input patch "
        "at the same location among 256, at five depths of the generator. A larger weight preserves more of the input.",
    )
    identity: float = Field(
        default=1.0,
        ge=0,
        description="Weight of the contrastive loss between G(b) and b, as a factor of `contrast`: images of the "
        "target domain should not change. 0 halves the generator's work; the paper's FastCUT sets 0, and contrast=10.",
    )
    pool_size: int = Field(
        default=0, ge=0, description="Number of earlier fakes stored per discriminator, which sees some of them again."
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
                    f"generator.network={generator.network} has no blocks, whose features method=contrast needs: "
                    "set generator.network=resnet"
                )
            if generator.blocks == 0:
                raise ValueError("generator.blocks=0 has no features for method=contrast: set 1 or more")
            if generator.output == "change":
                raise ValueError(
                    "generator.output=change is not available with method=contrast: set generator.output=image, mask "
                    "or keep"
                )
        spec.check_equal_channels(
            "method=contrast encodes translations with the encoder of their inputs (the preset auto takes any channels)"
        )

    def roles(self, spec: Spec, factory: NetworkFactory) -> dict[str, Role]:
        roles: dict[str, Role] = {}
        for direction in self.directions:
            source, target = domains_of(direction)
            in_channels, out_channels = spec.channels[source], spec.channels[target]
            net = factory.generator(spec.generators[direction], in_channels=in_channels, out_channels=out_channels)
            encoder, rest = split_for_features(net.net if isinstance(net, MaskGenerator) else net)
            widths = [in_channels, *encoder.widths]
            roles[f"E_{source}"] = Role(net=encoder, is_averaged=True)
            roles[f"R_{source}"] = Role(net=rest, is_averaged=True)
            roles[f"H_{source}"] = Role(net=PatchHeads(widths), header={"network": "patch_heads", "widths": widths})
            roles[f"D_{source}"] = self.build_discriminator(spec, direction, factory)
        return roles

    def objective(self, spec: Spec, *, shape: tuple[int, int], batched: bool) -> ContrastObjective:
        has_mask = [spec.generators[direction].output == "mask" for direction in self.directions]
        return ContrastObjective(self, has_mask, self.shapes(spec, shape), batched=batched)

    def fakes(self, cache: PhaseCache) -> dict[Direction, Tensor]:
        return {direction: cache[names.fake] for direction, names in zip(self.directions, DIRECTIONS)}

    def inference_generators(self, nets: Nets, spec: Spec) -> InferenceGenerators:
        return InferenceGenerators(
            {
                direction: _compose_generator(nets, domains_of(direction)[0], spec.generators[direction].output)
                for direction in self.directions
            }
        )


def _compose_generator(nets: Nets, source: Letter, output: str) -> nn.Module:
    encoder = nets[f"E_{source}"]
    assert isinstance(encoder, FeatureEncoder)
    net = compose(*encoder.stages, nets[f"R_{source}"])
    wrapper = {"mask": MaskGenerator, "keep": KeepGenerator}.get(output)
    return wrapper(net).train(encoder.training) if wrapper else net


Layers = tuple[Tensor, ...]
"""The layers whose patches are compared: images `(B, C, H, W)`, then feature maps of the generator's encoder."""


class ContrastObjective(ImageGANObjective):
    """The losses, in two phases: one trains E, R and H of each direction, the other D; see `ImageGANObjective`.

    `has_mask`: for each direction, whether its generator outputs a mask.
    """

    def __init__(self, config: Contrast, has_mask: Sequence[bool], shapes: Shapes, *, batched: bool = False):
        super().__init__(config, DIRECTIONS[: len(has_mask)], shapes, batched=batched)
        self.config = config
        self.has_mask = dict(zip((direction.letter for direction in self.directions), has_mask))
        self.slots.add("locations", MAX_LAYERS * PATCHES)
        self.num_uniforms = {"train": self.slots.num_uniforms}

    def phases(self) -> list[Phase]:
        generators = tuple(f"{part}_{direction.source}" for direction in self.directions for part in "ERH")
        return self.build_phases(generators, tuple(direction.discriminator for direction in self.directions))

    def generator_loss(self, nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        """Compute adversarial, contrastive (eq. 5), identity and edge losses.

        The identity loss is contrastive, too; it gets a part of the weight `contrast`, as in the authors' code.
        """
        config, terms = self.config, dict[str, Tensor]()
        fakes = dict[str, Tensor]()
        weights = {"contrast": 1.0} | ({"identity": config.identity} if config.identity else {})
        for direction in self.directions:
            inputs = [batch[direction.source], batch[direction.target]][: len(weights)]
            outputs, input_layers = self._translate_with_layers(nets, direction, inputs)
            output_layers, fake = self._encode(nets, direction, outputs), outputs[0]
            logits = nets[direction.discriminator](self.augment_for_discriminator(direction, fake, batch, "generator"))
            terms[f"adversarial_{direction.letter}"] = generator_adversarial_loss(logits, kind=config.gan)
            for (name, weight), queries, keys in zip(weights.items(), output_layers, input_layers, strict=True):
                loss = self._contrastive_loss(nets, direction, queries, keys, batch)
                terms[f"{name}_{direction.letter}"] = loss * (config.contrast * weight / (1 + config.identity))
            if config.edges:
                terms[f"edges_{direction.letter}"] = edge_loss(fake, batch[direction.source]) * config.edges
            fakes[direction.fake] = fake.float()
        return LossOutput(loss=sum_terms(terms), terms=terms, cache=fakes)

    def translate(self, nets: Nets, direction: DirectionSpec, images: Tensor) -> Tensor:
        ((fake,), _) = self._translate_with_layers(nets, direction, [images])
        return fake

    def _translate_with_layers(
        self, nets: Nets, direction: DirectionSpec, images: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Layers]]:
        """Return the translation of each batch of `images`, and the batch's layers."""
        layers, rest = self._encode(nets, direction, images), nets[f"R_{direction.source}"]
        outputs = batched_forward(rest, *(features[-1] for features in layers), batched=self.batched)
        if self.has_mask[direction.letter]:
            outputs = [apply_mask(output, x) for output, x in zip(outputs, images)]
        return list(outputs), layers

    def _encode(self, nets: Nets, direction: DirectionSpec, images: Sequence[Tensor]) -> list[Layers]:
        features = batched_forward(nets[f"E_{direction.source}"], *images, batched=self.batched)
        return [(x, *maps) for x, maps in zip(images, features)]

    def _contrastive_loss(
        self, nets: Nets, direction: DirectionSpec, outputs: Layers, inputs: Layers, batch: Batch
    ) -> Tensor:
        """Return the mean of `patch_nce_loss` over layers."""
        heads, uniform = nets[f"H_{direction.source}"], self.slots.rows(batch, "locations")
        draws = uniform.split(PATCHES)[: len(outputs)]
        locations = [sample_locations(draw, x.shape[2] * x.shape[3]) for draw, x in zip(draws, outputs, strict=True)]
        queries = heads([gather_at(x, indices) for x, indices in zip(outputs, locations)])
        keys = heads([gather_at(x.detach(), indices) for x, indices in zip(inputs, locations)])
        return torch.stack([patch_nce_loss(query, key) for query, key in zip(queries, keys)]).mean()
