"""One pair instead of two: an autoencoder of both domains, and a translator and a discriminator of its encodings.

After "Improving Cycle-GAN using Intel AI DevCloud" (2018, figure 11). Roles: `E` encodes images of both domains and `R`
decodes them; `T_A` translates encodings of A into encodings of B, and `D_A` judges encodings of domain B; `T_B` and
`D_B` are there for the other direction where both are trained.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from velogan.methods.adversarial import Adversarial
from velogan.methods.base import InferenceGenerators, NetworkFactory, Role, Spec, discriminator_header, generator_header
from velogan.methods.capabilities import TrainedGenerator
from velogan.methods.image_gan import sum_of
from velogan.networks.generators import GeneratorConfig, compose, split
from velogan.networks.outputs import ChangeGenerator
from velogan.objectives.base import LossOutput, Phase, PhaseCache
from velogan.objectives.losses import generator_adversarial_loss, l1_loss
from velogan.objectives.pool import FakePool
from velogan.types import GENERATOR_FILES, Batch, Direction, Letter, Nets, domains_of

Pair = tuple[Tensor, ...]
"""Encodings of A and B, `(B, ...)` each: one concatenated batch, which saves copies, or a pair."""


class OnePair(Adversarial):
    """Encoder E and decoder R of both domains; by direction a translator T and a discriminator; images a and b."""

    kind = "onepair"
    summary = "an autoencoder, and a translator and a discriminator of its encodings"

    direction: Literal["a2b", "both"] = Field(
        default="a2b", description="a2b: A to B alone; both: B to A as well, around the same autoencoder."
    )
    stage: Literal["joint", "autoencoder", "translator"] = Field(
        default="joint",
        description="What is trained. joint: all. autoencoder: it alone, for a later run. translator: the rest, "
        "around the autoencoder of the run `start`, which stays as it is.",
    )
    start: str | None = Field(
        default=None, description="Folder of the run whose autoencoder is taken, where stage is translator."
    )
    reconstruction: float = Field(default=10.0, gt=0, description="Weight of |R(E(x)) - x| of both domains.")
    scale: float = Field(
        default=0.0,
        ge=0,
        description="Weight of (log of the encodings' mean square)^2, which keeps their scale near 1. Useful with "
        "generator.norm=none; an instance norm at the encoder's end keeps the scale by itself. 0: none.",
    )
    adversarial: float = Field(
        default=1.0, ge=0, description="Weight of the discriminator on encodings; 0: there is none."
    )
    deviation_target: float = Field(
        default=10.0, ge=0, description="Weight of |T(E(b)) - E(b)|: encodings of the target pass unchanged."
    )
    deviation_source: float = Field(
        default=1.0,
        ge=0,
        description="Weight of |T(E(a)) - E(a)|: encodings of the source change no more than they are forced to.",
    )

    @model_validator(mode="after")
    def _start_and_directions(self) -> OnePair:
        if (self.stage == "translator") != (self.start is not None):
            raise ValueError(
                f"start={self.start} and stage={self.stage} do not go together: name the autoencoder's run with "
                "stage=translator, and none otherwise"
            )
        return self

    @property
    def directions(self) -> tuple[Direction, ...]:
        return ("a2b", "b2a") if self.direction == "both" else ("a2b",)

    @property
    def translated(self) -> tuple[Direction, ...]:
        """The directions that have a translator: none where the autoencoder is trained alone."""
        return () if self.autoencoder_only else self.directions

    @property
    def autoencoder_only(self) -> bool:
        return self.stage == "autoencoder"

    def check(self, spec: Spec) -> None:
        generator = spec.generators["a2b"]
        if not generator.has_stages:
            raise ValueError(
                f"generator.network={generator.network} has no encoder, translator and decoder, which method=onepair "
                "needs: set generator.network=resnet"
            )
        if _around_translator(spec.generators["b2a"]) != _around_translator(generator):
            raise ValueError("generator_b differs from generator, but method=onepair has one autoencoder: leave it out")
        if generator.output in ("mask", "keep"):
            raise ValueError(
                f"generator.output={generator.output} is for method=cyclegan: here set generator.output=change, or "
                "image"
            )
        for direction in self.translated:
            section, network = f"discriminator{'_b' * (direction == 'b2a')}", spec.discriminators[direction].network
            if network.startswith("projected"):
                raise ValueError(
                    f"{section}.network={network} sees pictures, and method=onepair judges encodings: set "
                    f"{section}.network=basic"
                )
        if generator.blocks == 0 and not self.autoencoder_only:
            raise ValueError("generator.blocks=0 leaves method=onepair no translator: set 1 or more")
        spec.check_equal_channels("method=onepair has one autoencoder for both domains")

    def roles(self, spec: Spec, make: NetworkFactory) -> dict[str, Role]:
        whole = self._whole(spec)
        config = GeneratorConfig.model_validate(whole["config"])
        channels = spec.channels["A"]
        encoder, translator, decoder = split(make.generator(config, in_channels=channels, out_channels=channels))
        if self.stage == "translator":  # they stay as they are: a batch norm's statistics, too
            encoder.eval()
            decoder.eval()
        roles = {"E": Role(net=encoder, averaged=True), "R": Role(net=decoder, averaged=True)}
        for direction in self.translated:
            name, (_, target) = _letter(direction), domains_of(direction)
            if name != "A":
                generator = make.generator(spec.generators[direction], in_channels=channels, out_channels=channels)
                translator = split(generator).translator
            roles[f"T_{name}"] = Role(net=translator, averaged=True)
            if self.adversarial:
                roles[f"D_{name}"] = self._encoding_discriminator(spec, direction, make, real_domain=target)
        return roles

    def _encoding_discriminator(
        self, spec: Spec, direction: Direction, make: NetworkFactory, *, real_domain: Letter
    ) -> Role:
        config, width = spec.discriminators[direction], _width(spec)
        header = discriminator_header(config, in_channels=width, network="encoding_discriminator")
        net = make.encoding_discriminator(config, in_channels=width)
        return Role(net=net, header=header, real_domain=real_domain, input_kind="encodings")

    def take_trained(self, nets: Nets, load: Callable[[Path], TrainedGenerator]) -> None:
        if self.stage != "translator":
            return
        pretrained = load(Path(self.start or ""))
        if not pretrained.config.has_stages:
            raise ValueError(
                f"method.start={self.start} holds a {pretrained.config.network}, which has no encoder: name another run"
            )
        encoder, _, decoder = split(pretrained.net)
        try:
            nets["E"].load_state_dict(encoder.state_dict())
            _load_in_order(nets["R"], decoder)
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise ValueError(
                f"method.start={self.start} holds another autoencoder than generator.* describes ({reason}): set its "
                "values"
            ) from None

    def objective(self, spec: Spec, *, shape: tuple[int, int], batched: bool) -> OnePairObjective:
        height, width = (side // 4 for side in shape)
        return OnePairObjective(self, encoding=(_width(spec), height, width), batched=batched)

    def views(self, nets: Nets, spec: Spec) -> InferenceGenerators:
        autoencoder = compose(nets["E"], nets["R"])
        if self.autoencoder_only:
            return InferenceGenerators({"a2b": autoencoder}, autoencoder, translates=False)
        join = ChangeGenerator if spec.generators["a2b"].output == "change" else compose
        made: dict[Direction, nn.Module] = {
            direction: join(nets["E"], nets[f"T_{_letter(direction)}"], nets["R"]) for direction in self.directions
        }
        return InferenceGenerators(made, autoencoder)

    def headers(self, spec: Spec) -> dict[Direction, dict[str, Any]]:
        whole = self._whole(spec)
        return {
            direction: whole if direction == "a2b" else generator_header(spec, direction)
            for direction in self.directions
        }

    def autoencoder_of(self, generator: nn.Module) -> nn.Module:
        encoder, _, decoder = split(generator)
        return compose(encoder, decoder)

    def _whole(self, spec: Spec) -> dict[str, Any]:
        """The header of what encoder, translator and decoder make together."""
        alone = spec.generators["a2b"].autoencoder() if self.autoencoder_only else {}
        return generator_header(spec, "a2b", **alone)


class OnePairObjective:
    """The losses as phases over the roles.

    `encoding` is the (C, H, W) of encodings, for the pools of fakes. With `batched`, passes of one network are run
    together, which is exact with per-sample norms.
    """

    def __init__(self, config: OnePair, *, encoding: tuple[int, int, int], batched: bool = False):
        self.config, self.batched = config, batched
        self.letters = directions = [_letter(direction) for direction in config.translated]
        self.discriminators = tuple(f"D_{direction}" for direction in directions if config.adversarial)
        self.pools = {role: FakePool(config.pool_size, encoding) for role in self.discriminators}
        self.state: nn.Module = nn.ModuleDict(self.pools)
        self.draws = {"train": 2 * len(self.pools)}

    def phases(self) -> list[Phase]:
        """The autoencoder, the translators on its encodings, the discriminators on pretrained; as `stage` says."""
        config = self.config
        translators = tuple(f"T_{direction}" for direction in self.letters)
        autoencoder = Phase(name="autoencoder", trains=("E", "R"), loss=self.autoencoder_loss)
        translator = Phase(name="translator", trains=translators, loss=self.translator_loss)
        if config.stage == "autoencoder":
            return [autoencoder]
        first = [translator] if config.stage == "translator" else [autoencoder, translator]
        if not self.discriminators:
            return first
        return [*first, Phase(name="discriminator", trains=self.discriminators, loss=self.discriminator_loss)]

    def autoencoder_loss(self, nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        """The reconstruction of both domains; hands on the encodings that it began with."""
        return self._reconstruct(nets, batch, self._encode(nets, batch))

    def translator_loss(self, nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        """The translators' losses on encodings that stay as they are."""
        if not _unpack_encodings(cache):  # where the autoencoder is not trained
            cache = _pack_encodings(self._encode(nets, batch))
        return self._translate(nets, cache)

    def discriminator_loss(self, nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        """Half of real plus fake, on fakes from the pools, as CycleGAN does it."""
        cache, terms = self._with_fakes(nets, batch, cache), {}
        for number, role in enumerate(self.pools):
            fake = self.pools[role](cache[f"fake_{role}"], batch["uniform"][2 * number : 2 * number + 2])
            real = self._real(role, cache)
            terms[role.lower()] = self.config.discriminator_term(nets[role], real=real, fake=fake, batched=self.batched)
        return LossOutput(loss=sum_of(terms), logged=terms)

    def _with_fakes(self, nets: Nets, batch: Batch, cache: PhaseCache) -> PhaseCache:
        """The cache of the translators' phase, or the part that discriminators need if this process does not run it."""
        if any(name.startswith("fake_") for name in cache):
            return cache
        with torch.no_grad():
            encoded = _unpack_encodings(cache) or self._encode(nets, batch)
            made = {**cache, **_pack_encodings(encoded)}
            for direction in self.letters:
                if f"D_{direction}" in self.pools:
                    made[f"fake_D_{direction}"] = nets[f"T_{direction}"](
                        _source_and_target(direction, encoded)[0]
                    ).float()
        return made

    def _encode(self, nets: Nets, batch: Batch) -> Pair:
        a, b = batch["A"], batch["B"]
        return _apply_to_pair(nets["E"], (torch.cat([a, b]),) if self.batched else (a, b))

    def _reconstruct(self, nets: Nets, batch: Batch, encoded: Pair) -> LossOutput:
        back_a, back_b = _source_and_target("A", _apply_to_pair(nets["R"], encoded))
        weight = self.config.reconstruction
        terms = {
            "reconstruction_a": l1_loss(back_a, batch["A"]) * weight,
            "reconstruction_b": l1_loss(back_b, batch["B"]) * weight,
        }
        if self.config.scale:
            square = torch.stack([part.float().square().mean() for part in encoded]).mean()
            terms["scale"] = self.config.scale * square.log().square()
        return LossOutput(loss=sum_of(terms), logged=terms, cache=_pack_encodings(encoded))

    def _translate(self, nets: Nets, cache: PhaseCache) -> LossOutput:
        terms: dict[str, Tensor] = {}
        cache_out = _pack_encodings(_unpack_encodings(cache))
        for direction in self.letters:
            made, fakes = self._direction_losses(nets, direction, cache)
            terms |= {f"{name}_{direction.lower()}": value for name, value in made.items()}
            cache_out |= fakes
        return LossOutput(loss=sum_of(terms), logged=terms, cache=cache_out)

    def _direction_losses(
        self, nets: Nets, direction: str, cache: PhaseCache
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """One translator's terms, and its fakes for the discriminators."""
        config, encoded = self.config, _unpack_encodings(cache)
        source, target = _source_and_target(direction, encoded)
        terms: dict[str, Tensor] = {}
        if config.deviation_target:
            fake, same = _source_and_target(direction, _apply_to_pair(nets[f"T_{direction}"], encoded))
            terms["deviation_target"] = config.deviation_target * l1_loss(same, target.detach())
        else:
            fake = nets[f"T_{direction}"](source)
        if config.deviation_source:
            terms["deviation_source"] = config.deviation_source * l1_loss(fake, source.detach())
        fakes: dict[str, Tensor] = {}
        if config.adversarial:
            fakes[f"fake_D_{direction}"] = fake.float()
            terms["adversarial"] = config.adversarial * generator_adversarial_loss(
                nets[f"D_{direction}"](fake), kind=config.gan
            )
        return terms, fakes

    def _real(self, role: str, cache: PhaseCache) -> Tensor:
        """Encodings of the domain that the discriminator `role` judges."""
        return _source_and_target(role[-1], _unpack_encodings(cache))[1]


def _letter(direction: Direction) -> str:
    """The letter of a direction's translator: that of its generator."""
    return GENERATOR_FILES[direction][-1]


def _around_translator(config: GeneratorConfig) -> GeneratorConfig:
    """What is left of a generator without its translator, which each direction has for itself."""
    return config.model_copy(update={**config.autoencoder(), "output": config.output})


def _width(spec: Spec) -> int:
    """Channels of an encoding."""
    return spec.generators["a2b"].encoding


def _load_in_order(net: nn.Module, other: nn.Module) -> None:
    """Takes weights in the order of layers, whose names count the blocks before them."""
    names, weights = net.state_dict().keys(), other.state_dict().values()
    if len(names) != len(weights):
        raise RuntimeError(f"{len(weights)} tensors for {len(names)}")
    net.load_state_dict(dict(zip(names, weights)))


def _apply_to_pair(net: nn.Module, pair: Pair) -> Pair:
    return tuple(net(part) for part in pair)


def _pack_encodings(pair: Pair) -> dict[str, Tensor]:
    return {f"encoded_{number}": part for number, part in enumerate(pair)}


def _unpack_encodings(cache: PhaseCache) -> Pair:
    """The encodings among what is carried; empty where there are none."""
    return tuple(value for name, value in cache.items() if name.startswith("encoded_"))


def _source_and_target(direction: str, pair: Pair) -> tuple[Tensor, Tensor]:
    """What `pair` holds of A and of B: the source of `direction` first, then its target."""
    a, b = pair if len(pair) == 2 else pair[0].chunk(2)
    return (a, b) if direction == "A" else (b, a)
