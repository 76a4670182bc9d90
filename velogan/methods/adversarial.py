"""What methods with discriminators have in common: the adversarial loss, and what keeps its training stable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator
from torch import Tensor, nn

from velogan.methods.base import Method
from velogan.objectives.base import together
from velogan.objectives.losses import GanLossName, gan_loss, gradient_penalty, mixed, zero_centred_penalty

GRADIENT_PENALTY = 10.0
"""Weight of the penalty that belongs to `gan=wgangp` (Gulrajani et al. 2017, section 4)."""


class Adversarial(Method):
    """Fields of every method with discriminators."""

    gan: GanLossName = Field(default="lsgan", description="Adversarial loss; wgangp has a gradient penalty.")
    smoothing: float = Field(
        default=0.0,
        ge=0,
        lt=0.5,
        description="lsgan and vanilla: so much less than 1 is asked of real images, so that a discriminator does not "
        "become too sure; 0.1 is usual.",
    )
    penalty: Literal["none", "r1", "zero_centred"] = Field(
        default="none",
        description="Penalty on |gradient of a discriminator|^2 with respect to its images. r1: at real images. "
        "zero_centred: at mixtures of real and made ones. It needs second derivatives, so the discriminators run "
        "without the native kernels.",
    )
    penalty_weight: float = Field(
        default=0.1,
        gt=0,
        description="Weight of `penalty`; for r1 it is gamma. A paper's 10 is far too strong in short trainings.",
    )
    penalty_every: int = Field(
        default=16, ge=1, description="`penalty` is computed in each so many-th step, with so many times its weight."
    )
    discriminator_steps: int = Field(
        default=1,
        ge=1,
        description="Steps of the discriminators, each on new pictures, for one of the generators (the translators).",
    )
    pool_size: int = Field(
        default=50, ge=0, description="Earlier fakes kept per discriminator, which sees some of them again."
    )

    @model_validator(mode="after")
    def _stabilisers_fit(self) -> Adversarial:
        if self.smoothing and self.gan not in ("lsgan", "vanilla"):
            raise ValueError(
                f"smoothing={self.smoothing:g} is of losses with labels, not gan={self.gan}: leave it out, or set "
                "gan=lsgan or vanilla"
            )
        if self.penalty != "none" and self.gan == "wgangp":
            raise ValueError(
                f"penalty={self.penalty} is not for gan=wgangp, which has a penalty of its own: leave it out"
            )
        return self

    @property
    def second_derivatives(self) -> bool:
        return self.gan == "wgangp" or self.penalty != "none"

    @property
    def one_size(self) -> Mapping[str, str]:
        needs = {f"method.pool_size={self.pool_size}": "0"} if self.pool_size else {}
        needs |= {"method.gan=wgangp": "lsgan"} if self.gan == "wgangp" else {}  # both mix real and made images
        return needs | ({"method.penalty=zero_centred": "r1"} if self.penalty == "zero_centred" else {})

    def penalty_term(self, discriminator: nn.Module, *, real: Tensor, fake: Tensor, mix: Tensor | None) -> Tensor:
        """The penalty at real images, or with `mix` at mixtures, weighted for a step of `penalty_every`.

        It is halved like the rest of a discriminator's loss.

        r1 is gamma / 2 times the mean square (Mescheder et al. 2018, eq. 9). zero_centred has mixtures instead of real
        images, and no half (Thanh-Tung et al. 2019). Computing it rarely: Karras et al. 2020, StyleGAN2, appendix B.
        """
        r1 = mix is None
        value = zero_centred_penalty(discriminator, real if mix is None else mixed(real, fake, mix))
        return value * (0.5 * self.penalty_weight * self.penalty_every * (0.5 if r1 else 1))

    def discriminator_term(
        self,
        discriminator: nn.Module,
        *,
        real: Tensor,
        fake: Tensor,
        batched: bool,
        weights: Tensor | None = None,
        mix: Tensor | None = None,
    ) -> Tensor:
        """Half of real plus fake; `mix`, `(B,)` in [0, 1), is for wgangp. See `together` for `batched`.

        `weights` are those of fakes for heads on trained features. The PatchGAN, which comes last, has none.
        """
        on_real, on_fake = together(discriminator, real, fake, batched=batched)
        loss = gan_loss(on_real, real=True, kind=self.gan, smoothing=self.smoothing)
        if weights is None or isinstance(on_fake, Tensor):
            loss = loss + gan_loss(on_fake, real=False, kind=self.gan)
        else:
            *by_features, by_pixels = on_fake
            loss = loss + gan_loss(by_features, real=False, kind=self.gan, weights=weights)
            loss = loss + gan_loss(by_pixels, real=False, kind=self.gan)
        if self.gan == "wgangp":
            assert mix is not None
            loss = loss + GRADIENT_PENALTY * gradient_penalty(discriminator, real=real, fake=fake, mix=mix)
        return loss * 0.5
