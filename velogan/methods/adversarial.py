"""What methods with discriminators have in common: the adversarial loss, and what keeps its training stable."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field, model_validator
from torch import Tensor, nn

from velogan.methods.base import Method
from velogan.objectives.base import batched_forward
from velogan.objectives.losses import GanLossName, gan_loss


class Adversarial(Method):
    """Fields of every method with discriminators."""

    gan: GanLossName = Field(default="lsgan", description="Adversarial loss.")
    smoothing: float = Field(
        default=0.0,
        ge=0,
        lt=0.5,
        description="lsgan and vanilla: so much less than 1 is asked of real images, so that a discriminator does not "
        "become too sure; 0.1 is usual.",
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
        return self

    @property
    def fixed_size_fields(self) -> Mapping[str, str]:
        return {f"method.pool_size={self.pool_size}": "0"} if self.pool_size else {}

    def discriminator_term(
        self,
        discriminator: nn.Module,
        *,
        real: Tensor,
        fake: Tensor,
        batched: bool,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Half of real plus fake. See `together` for `batched`.

        `weights` are those of fakes for heads on trained features. The PatchGAN, which comes last, has none.
        """
        on_real, on_fake = batched_forward(discriminator, real, fake, batched=batched)
        loss = gan_loss(on_real, real=True, kind=self.gan, smoothing=self.smoothing)
        if weights is None or isinstance(on_fake, Tensor):
            loss = loss + gan_loss(on_fake, real=False, kind=self.gan)
        else:
            *by_features, by_pixels = on_fake
            loss = loss + gan_loss(by_features, real=False, kind=self.gan, weights=weights)
            loss = loss + gan_loss(by_pixels, real=False, kind=self.gan)
        return loss * 0.5
