"""One pair instead of two: an autoencoder of both domains, and a translator and a discriminator of its encodings.

After "Improving Cycle-GAN using Intel AI DevCloud" (2018, figure 11). Roles: `E` encodes images of both domains and `R`
decodes them; `T_A` translates encodings of A into encodings of B, and `D_A` judges encodings of domain B; `T_B` and
`D_B` are there for the other direction where both are trained. For the terms that go beyond that text `P_A` and `P_B`
judge decoded images of domain B and A, and `H` projects encodings for their contrast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from velogan.objectives.base import Carry, Out, Phase
from velogan.objectives.losses import gan_loss, mean_deviation, patch_contrast
from velogan.objectives.pool import FakePool
from velogan.types import Batch, Nets

Pair = tuple[Tensor, ...]
"""What belongs to A and to B, `(B, ...)` each: both joined, which spares copies, or one and the other."""

POSITIONS = 256
"""Positions of an encoding that are contrasted with each other, at most (Park et al. 2020, section 3)."""


class OnePairConfig(BaseModel):
    """Weights and choices of the one-pair method."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    direction: Literal["a2b", "both"] = Field(
        default="a2b", description="both: a translator and a discriminator for B to A as well, around one autoencoder."
    )
    stage: Literal["joint", "autoencoder", "translator"] = Field(
        default="joint",
        description="What is trained. joint: all. autoencoder: it alone, for a later run. translator: the rest, "
        "around the autoencoder of the run `start`, which stays as it is.",
    )
    start: str | None = Field(
        default=None, description="Folder of the run whose autoencoder is taken, where stage is translator."
    )
    gan: Literal["lsgan", "vanilla"] = Field(default="lsgan", description="Adversarial loss.")
    reconstruction: float = Field(default=10.0, gt=0, description="Weight of |R(E(x)) - x| of both domains.")
    scale: float = Field(
        default=0.0,
        ge=0,
        description="Weight of (log of the encodings' mean square)^2, which keeps their scale at 1 under the "
        "discriminator, for generator.norm=none; an instance norm at the encoder's end keeps it by itself. 0: none.",
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
    through_encoder: bool = Field(
        default=False, description="The translator's losses train the encoder too, in one phase with the autoencoder."
    )
    image_adversarial: float = Field(
        default=0.0,
        ge=0,
        description="Weight of a discriminator on decoded translations, a PatchGAN; 0: there is none.",
    )
    contrast: float = Field(
        default=0.0,
        ge=0,
        description="Weight of the patch contrast (PatchNCE): each position of T(E(a)) is nearer to E(a) there than to "
        "E(a) elsewhere; 0: there is none.",
    )
    pool_size: int = Field(default=50, ge=0, description="Past fakes kept per discriminator.")

    @model_validator(mode="after")
    def _a_start_for_the_translator_alone(self) -> OnePairConfig:
        if (self.stage == "translator") != (self.start is not None):
            raise ValueError(
                f"start={self.start} and stage={self.stage} do not go together: name the autoencoder's run with "
                "stage=translator, and none otherwise"
            )
        return self

    @property
    def ways(self) -> tuple[str, ...]:
        """The letters of the translators' roles: A, and B where both directions are trained."""
        return ("A", "B") if self.direction == "both" else ("A",)


class OnePair:
    """The method as phases over its roles.

    `encoding` and `image` are the (C, H, W) of encodings and images, for the pools of fakes. With `changed`, a
    translation, as it is judged, is the input with the change between its encoding decoded `before` and `after`;
    otherwise it is what is decoded. With `batched`, passes of one network are run together, which is exact with
    per-sample norms.
    """

    def __init__(
        self,
        config: OnePairConfig,
        *,
        encoding: tuple[int, int, int],
        image: tuple[int, int, int],
        changed: Callable[..., Tensor] | None = None,
        batched: bool = False,
    ):
        self.config, self.changed, self.batched = config, changed, batched
        ways = config.ways if config.stage != "autoencoder" else ()
        self.encoding_discriminators = [f"D_{way}" for way in ways if config.adversarial]
        self.image_discriminators = [f"P_{way}" for way in ways if config.image_adversarial]
        shapes = dict.fromkeys(self.encoding_discriminators, encoding) | dict.fromkeys(self.image_discriminators, image)
        self.pools = {role: FakePool(config.pool_size, shape) for role, shape in shapes.items()}
        self.state: nn.Module = nn.ModuleDict(self.pools)
        self.positions = min(POSITIONS, encoding[1] * encoding[2]) if config.contrast else 0
        self.draws = 2 * len(self.pools) + self.positions * len(ways)

    def phases(self) -> list[Phase]:
        """The autoencoder, the translators on its encodings, the discriminators on theirs; as `stage` says."""
        config = self.config
        translators = tuple(f"T_{way}" for way in config.ways) + (("H",) if config.contrast else ())
        discriminators = (*self.encoding_discriminators, *self.image_discriminators)
        autoencoder = Phase(name="autoencoder", trains=("E", "R"), loss=self.autoencoder_loss)
        translator = Phase(name="translator", trains=translators, loss=self.translator_loss)
        if config.stage == "autoencoder":
            return [autoencoder]
        if config.stage == "translator":
            first = [translator]
        elif config.through_encoder:
            first = [Phase(name="generator", trains=("E", "R", *translators), loss=self.generator_loss)]
        else:
            first = [autoencoder, translator]
        return (
            [*first, Phase(name="discriminator", trains=discriminators, loss=self.discriminator_loss)]
            if discriminators
            else first
        )

    def autoencoder_loss(self, nets: Nets, batch: Batch, carry: Carry) -> Out:
        """The reconstruction of both domains; hands on the encodings that it began with."""
        return self._reconstruct(nets, batch, self._encode(nets, batch))

    def translator_loss(self, nets: Nets, batch: Batch, carry: Carry) -> Out:
        """The translators' losses on encodings that stay as they are."""
        if not _encoded(carry):  # where the autoencoder is not trained
            carry = _carried(self._encode(nets, batch))
        return self._translate(nets, batch, carry)

    def generator_loss(self, nets: Nets, batch: Batch, carry: Carry) -> Out:
        """Autoencoder and translators in one."""
        one = self._reconstruct(nets, batch, self._encode(nets, batch))
        other = self._translate(nets, batch, one.carry)
        return Out(total=one.total + other.total, terms={**one.terms, **other.terms}, carry=other.carry)

    def discriminator_loss(self, nets: Nets, batch: Batch, carry: Carry) -> Out:
        """Half of real plus fake, on fakes from the pools, as CycleGAN does it."""
        terms = {}
        for number, role in enumerate((*self.encoding_discriminators, *self.image_discriminators)):
            fake = self.pools[role](carry[f"fake_{role}"], batch["uniform"][2 * number : 2 * number + 2])
            terms[role.lower()] = self._discriminator_term(nets[role], real=self._real(role, batch, carry), fake=fake)
        return Out(total=_sum(terms), terms=terms)

    def _encode(self, nets: Nets, batch: Batch) -> Pair:
        a, b = batch["A"], batch["B"]
        return _over(nets["E"], (torch.cat([a, b]),) if self.batched else (a, b))

    def _reconstruct(self, nets: Nets, batch: Batch, encoded: Pair) -> Out:
        back_a, back_b = _from("A", _over(nets["R"], encoded))
        weight = self.config.reconstruction
        terms = {
            "reconstruction_a": mean_deviation(back_a, batch["A"]) * weight,
            "reconstruction_b": mean_deviation(back_b, batch["B"]) * weight,
        }
        if self.config.scale:
            square = torch.stack([part.float().square().mean() for part in encoded]).mean()
            terms["scale"] = self.config.scale * square.log().square()
        carry = _carried(encoded)
        if self.changed and self.image_discriminators:
            carry |= {"decoded_a": back_a.detach(), "decoded_b": back_b.detach()}
        return Out(total=_sum(terms), terms=terms, carry=carry)

    def _translate(self, nets: Nets, batch: Batch, carry: Carry) -> Out:
        terms: dict[str, Tensor] = {}
        handed = _carried(_encoded(carry))
        for number, way in enumerate(self.config.ways):
            uniform = batch["uniform"][2 * len(self.pools) + number * self.positions :][: self.positions]
            made, fakes = self._one_way(nets, way, batch, carry, uniform)
            terms |= {f"{name}_{way.lower()}": value for name, value in made.items()}
            handed |= fakes
        return Out(total=_sum(terms), terms=terms, carry=handed)

    def _one_way(
        self, nets: Nets, way: str, batch: Batch, carry: Carry, uniform: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """One translator's terms, and its fakes for the discriminators."""
        config, encoded = self.config, _encoded(carry)
        source, target = _from(way, encoded)
        terms: dict[str, Tensor] = {}
        if config.deviation_target:
            fake, same = _from(way, _over(nets[f"T_{way}"], encoded))
            terms["deviation_target"] = config.deviation_target * mean_deviation(same, target.detach())
        else:
            fake = nets[f"T_{way}"](source)
        if config.deviation_source:
            terms["deviation_source"] = config.deviation_source * mean_deviation(fake, source.detach())
        fakes: dict[str, Tensor] = {}
        if config.adversarial:
            fakes[f"fake_D_{way}"] = fake.float()
            verdict = gan_loss(nets[f"D_{way}"](fake), real=True, kind=config.gan)
            terms["adversarial"] = config.adversarial * verdict
        if config.image_adversarial:
            image = self._decoded(nets, fake, way, batch, carry)
            fakes[f"fake_P_{way}"] = image.float()
            verdict = gan_loss(nets[f"P_{way}"](image), real=True, kind=config.gan)
            terms["image_adversarial"] = config.image_adversarial * verdict
        if config.contrast:
            projected, given = self._each(nets["H"], fake, source.detach())
            terms["contrast"] = config.contrast * patch_contrast(projected, given.detach(), uniform)
        return terms, fakes

    def _decoded(self, nets: Nets, fake: Tensor, way: str, batch: Batch, carry: Carry) -> Tensor:
        """The translation as an image."""
        letter, after = way.lower(), nets["R"](fake)
        if self.changed is None:
            return after
        handed = f"decoded_{letter}" in carry  # by the autoencoder's phase
        before = carry[f"decoded_{letter}"] if handed else nets["R"](_from(way, _encoded(carry))[0])
        return self.changed(batch[way], after=after.float(), before=before.float())

    def _real(self, role: str, batch: Batch, carry: Carry) -> Tensor:
        _, way = role.split("_")
        return _from(way, _encoded(carry))[1] if role.startswith("D_") else batch["B" if way == "A" else "A"]

    def _discriminator_term(self, discriminator: nn.Module, *, real: Tensor, fake: Tensor) -> Tensor:
        on_real, on_fake = self._each(discriminator, real, fake)
        kind = self.config.gan
        return 0.5 * (gan_loss(on_real, real=True, kind=kind) + gan_loss(on_fake, real=False, kind=kind))

    def _each(self, net: nn.Module, one: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        """`net` on both, in one pass where that is asked for."""
        if not self.batched:
            return net(one), net(other)
        return net(torch.cat([one, other.to(one.dtype)])).split([len(one), len(other)])


def _over(net: nn.Module, pair: Pair) -> Pair:
    return tuple(net(part) for part in pair)


def _carried(pair: Pair) -> dict[str, Tensor]:
    return {f"encoded_{number}": part for number, part in enumerate(pair)}


def _encoded(carry: Carry) -> Pair:
    """The encodings among what is carried; empty where there are none."""
    return tuple(value for name, value in carry.items() if name.startswith("encoded_"))


def _from(way: str, pair: Pair) -> tuple[Tensor, Tensor]:
    """What `pair` holds of A and of B: the source of `way` first, then its target."""
    a, b = pair if len(pair) == 2 else pair[0].chunk(2)
    return (a, b) if way == "A" else (b, a)


def _sum(terms: dict[str, Tensor]) -> Tensor:
    first, *rest = terms.values()
    for term in rest:
        first = first + term
    return first
