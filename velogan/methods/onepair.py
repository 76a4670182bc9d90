"""One pair of networks instead of two: a translator and a discriminator of the encodings of one autoencoder.

See "Improving Cycle-GAN using Intel AI DevCloud" (2018, figure 11). Roles: `E` encodes images of both domains and `R`
decodes them; `T_A` translates encodings of A to encodings of B, and `D_A` classifies encodings of domain B; `T_B` and
`D_B` exist if the direction from B to A is trained, too.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from velogan.methods.adversarial import Adversarial
from velogan.methods.base import InferenceGenerators, Role, Spec, discriminator_header
from velogan.methods.image_gan import sum_terms
from velogan.networks.build import NetworkFactory
from velogan.networks.generators import GeneratorConfig, compose, split_stages
from velogan.networks.outputs import ChangeGenerator
from velogan.objectives.base import LossOutput, Phase, PhaseCache, UniformSlots
from velogan.objectives.losses import generator_adversarial_loss, l1_loss
from velogan.objectives.pool import FakePool
from velogan.types import Batch, Direction, Letter, Nets, domains_of

Encodings = tuple[Tensor, ...]
"""Encodings of images of both domains: two tensors `(n, C, H, W)`, or one `(2 n, C, H, W)`, which saves copies."""


class OnePair(Adversarial):
    """Encoder E and decoder R of both domains; per direction a translator T and a discriminator of encodings."""

    kind = "onepair"
    summary = "an autoencoder, and a translator and a discriminator of its encodings"

    direction: Literal["a2b", "both"] = Field(
        default="a2b", description="a2b: A to B only; both: B to A as well, with the same autoencoder."
    )
    reconstruction: float = Field(default=10.0, gt=0, description="Weight of |R(E(x)) - x| of both domains.")
    scale: float = Field(
        default=0.0,
        ge=0,
        description="Weight of (log of the encodings' mean square)^2, which keeps their scale near 1. Useful with "
        "generator.norm=none; an instance norm at the end of the encoder fixes the scale. 0: no such loss.",
    )
    adversarial: float = Field(
        default=1.0, ge=0, description="Weight of the adversarial loss on encodings. 0: no discriminator."
    )
    deviation_target: float = Field(
        default=10.0, ge=0, description="Weight of |T(E(b)) - E(b)|: encodings of the target should not change."
    )
    deviation_source: float = Field(
        default=1.0,
        ge=0,
        description="Weight of |T(E(a)) - E(a)|: encodings of the source should change little.",
    )

    @property
    def directions(self) -> tuple[Direction, ...]:
        return ("a2b", "b2a") if self.direction == "both" else ("a2b",)

    def check(self, spec: Spec) -> None:
        generator = spec.generators["a2b"]
        if not generator.has_stages:
            raise ValueError(
                f"generator.network={generator.network} has no encoder, translator and decoder, which method=onepair "
                "needs: set generator.network=resnet"
            )
        if _without_translator(spec.generators["b2a"]) != _without_translator(generator):
            raise ValueError("generator_b differs from generator, but method=onepair has one autoencoder: leave it out")
        if generator.output in ("mask", "keep"):
            raise ValueError(
                f"generator.output={generator.output} is for method=cyclegan: here set generator.output=change, or "
                "image"
            )
        for direction in self.directions:
            section = "discriminator" if direction == "a2b" else "discriminator_b"
            network = spec.discriminators[direction].network
            if network.startswith("projected"):
                raise ValueError(
                    f"{section}.network={network} needs images, but method=onepair has encodings: set "
                    f"{section}.network=basic"
                )
        if generator.blocks == 0:
            raise ValueError("generator.blocks=0 leaves method=onepair no translator: set 1 or more")
        spec.check_equal_channels("method=onepair has one autoencoder for both domains")

    def roles(self, spec: Spec, factory: NetworkFactory) -> dict[str, Role]:
        generator, channels = spec.generators["a2b"], spec.channels["A"]
        encoder, translator, decoder = split_stages(
            factory.generator(generator, in_channels=channels, out_channels=channels)
        )
        roles = {"E": Role(net=encoder, is_averaged=True), "R": Role(net=decoder, is_averaged=True)}
        for direction in self.directions:
            source, target = domains_of(direction)
            if source != "A":
                generator = factory.generator(spec.generators[direction], in_channels=channels, out_channels=channels)
                translator = split_stages(generator).translator
            roles[f"T_{source}"] = Role(net=translator, is_averaged=True)
            if self.adversarial:
                discriminator, width = spec.discriminators[direction], spec.generators["a2b"].encoding_channels
                roles[f"D_{source}"] = Role(
                    net=factory.encoding_discriminator(discriminator, in_channels=width),
                    header=discriminator_header(discriminator, in_channels=width, network="encoding_discriminator"),
                    real_domain=target,
                    input_kind="encodings",
                )
        return roles

    def objective(self, spec: Spec, *, shape: tuple[int, int], batched: bool) -> OnePairObjective:
        (height, width), channels = (side // 4 for side in shape), spec.generators["a2b"].encoding_channels
        return OnePairObjective(self, encoding=(channels, height, width), batched=batched)

    def inference_generators(self, nets: Nets, spec: Spec) -> InferenceGenerators:
        autoencoder = compose(nets["E"], nets["R"])
        build = ChangeGenerator if spec.generators["a2b"].output == "change" else compose
        generators: dict[Direction, nn.Module] = {
            direction: build(nets["E"], nets[f"T_{domains_of(direction)[0]}"], nets["R"])
            for direction in self.directions
        }
        return InferenceGenerators(generators, autoencoder)

    def autoencoder_of(self, generator: nn.Module) -> nn.Module:
        encoder, _, decoder = split_stages(generator)
        return compose(encoder, decoder)


class OnePairObjective:
    """The losses, in a phase each for the autoencoder, the translators and the discriminators.

    `encoding`: (C, H, W) of encodings, for the pools of fakes. `batched`: run a network's forward passes as one batch,
    which is equivalent with per-sample norms.
    """

    def __init__(self, config: OnePair, *, encoding: tuple[int, int, int], batched: bool = False):
        self.config, self.batched = config, batched
        self.sources: list[Letter] = [domains_of(direction)[0] for direction in config.directions]
        self.discriminators = tuple(f"D_{source}" for source in self.sources if config.adversarial)
        self.pools = {role: FakePool(config.pool_size, encoding) for role in self.discriminators}
        self.state: nn.Module = nn.ModuleDict(self.pools)
        self.slots = UniformSlots()
        for role in self.pools:
            self.slots.add(f"pool {role}", 2)
        self.num_uniforms = {"train": self.slots.num_uniforms}

    def phases(self) -> list[Phase]:
        """Return the phases: the autoencoder's first, because the other phases use its encodings."""
        translators = tuple(f"T_{source}" for source in self.sources)
        autoencoder = Phase(name="autoencoder", trains=("E", "R"), loss=self.autoencoder_loss)
        translator = Phase(name="translator", trains=translators, loss=self.translator_loss)
        discriminator = Phase(name="discriminator", trains=self.discriminators, loss=self.discriminator_loss)
        return [autoencoder, translator, *([discriminator] if self.discriminators else [])]

    def autoencoder_loss(self, nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        """Compute the reconstruction losses of both domains, and the scale loss; cache the encodings."""
        encodings = self._encode(nets, batch)
        outputs_a, outputs_b = _source_and_target("A", _apply_to_each(nets["R"], encodings))
        weight = self.config.reconstruction
        terms = {
            "reconstruction_a": l1_loss(outputs_a, batch["A"]) * weight,
            "reconstruction_b": l1_loss(outputs_b, batch["B"]) * weight,
        }
        if self.config.scale:
            mean_square = torch.stack([encoding.float().square().mean() for encoding in encodings]).mean()
            terms["scale"] = self.config.scale * mean_square.log().square()
        return LossOutput(loss=sum_terms(terms), terms=terms, cache=_pack_encodings(encodings))

    def translator_loss(self, nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        """Compute the translators' losses on cached encodings, or on new ones if there are none."""
        encodings = _unpack_encodings(cache) or self._encode(nets, batch)
        terms: dict[str, Tensor] = {}
        fakes = _pack_encodings(encodings)
        for source in self.sources:
            losses, fake = self._direction_losses(nets, source, encodings)
            terms |= {f"{name}_{source.lower()}": loss for name, loss in losses.items()}
            if f"D_{source}" in self.pools:
                fakes[f"fake_D_{source}"] = fake.float()
        return LossOutput(loss=sum_terms(terms), terms=terms, cache=fakes)

    def discriminator_loss(self, nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        """Compute the mean of real and fake loss of each discriminator, on fakes from its pool, as in CycleGAN."""
        cache, terms = self._with_fakes(nets, batch, cache), dict[str, Tensor]()
        for source in self.sources:
            role = f"D_{source}"
            fake = self.pools[role](cache[f"fake_{role}"], self.slots.rows(batch, f"pool {role}"))
            _, real = _source_and_target(source, _unpack_encodings(cache))
            terms[role.lower()] = self.config.discriminator_loss(nets[role], real=real, fake=fake, batched=self.batched)
        return LossOutput(loss=sum_terms(terms), terms=terms)

    def _with_fakes(self, nets: Nets, batch: Batch, cache: PhaseCache) -> PhaseCache:
        """Return `cache` with encodings and fakes; compute them if another process runs the translators' phase."""
        if any(name.startswith("fake_") for name in cache):
            return cache
        with torch.no_grad():
            encodings = _unpack_encodings(cache) or self._encode(nets, batch)
            fakes = {
                f"fake_D_{source}": nets[f"T_{source}"](_source_and_target(source, encodings)[0]).float()
                for source in self.sources
            }
        return {**cache, **_pack_encodings(encodings), **fakes}

    def _encode(self, nets: Nets, batch: Batch) -> Encodings:
        a, b = batch["A"], batch["B"]
        return _apply_to_each(nets["E"], (torch.cat([a, b]),) if self.batched else (a, b))

    def _direction_losses(
        self, nets: Nets, source_domain: Letter, encodings: Encodings
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return the loss terms and the fakes of one translator."""
        config, translator = self.config, nets[f"T_{source_domain}"]
        source, target = _source_and_target(source_domain, encodings)
        terms: dict[str, Tensor] = {}
        if config.deviation_target:
            fake, target_output = _source_and_target(source_domain, _apply_to_each(translator, encodings))
            terms["deviation_target"] = config.deviation_target * l1_loss(target_output, target.detach())
        else:
            fake = translator(source)
        if config.deviation_source:
            terms["deviation_source"] = config.deviation_source * l1_loss(fake, source.detach())
        if config.adversarial:
            logits = nets[f"D_{source_domain}"](fake)
            terms["adversarial"] = config.adversarial * generator_adversarial_loss(logits, kind=config.gan)
        return terms, fake


def _without_translator(config: GeneratorConfig) -> GeneratorConfig:
    """Return the generator's configuration without its translator, which is separate for each direction."""
    return config.model_copy(update={**config.autoencoder_fields(), "output": config.output})


def _apply_to_each(net: nn.Module, inputs: Encodings) -> Encodings:
    return tuple(net(x) for x in inputs)


def _pack_encodings(encodings: Encodings) -> dict[str, Tensor]:
    return {f"encoded_{number}": encoding for number, encoding in enumerate(encodings)}


def _unpack_encodings(cache: PhaseCache) -> Encodings:
    """Return the encodings in a cache; empty if there are none."""
    return tuple(value for name, value in cache.items() if name.startswith("encoded_"))


def _source_and_target(source: Letter, tensors: Encodings) -> tuple[Tensor, Tensor]:
    """Return the tensors of the domain `source`, then those of the other domain."""
    a, b = tensors if len(tensors) == 2 else tensors[0].chunk(2)
    return (a, b) if source == "A" else (b, a)
