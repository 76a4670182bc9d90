"""Fields and loss of methods with discriminators."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field, model_validator
from torch import Tensor, nn

from velogan.methods.base import Method
from velogan.objectives.base import batched_forward
from velogan.objectives.losses import GanLossName, gan_loss


class Adversarial(Method):
    """A method with discriminators."""

    gan: GanLossName = Field(default="lsgan", description="Adversarial loss.")
    smoothing: float = Field(
        default=0.0,
        ge=0,
        lt=0.5,
        description="One-sided label smoothing for lsgan and vanilla: the target of real images is 1 minus this. "
        "0.1 is usual.",
    )
    pool_size: int = Field(
        default=50, ge=0, description="Number of earlier fakes stored per discriminator, which sees some of them again."
    )

    @model_validator(mode="after")
    def _check_smoothing(self) -> Adversarial:
        if self.smoothing and self.gan not in ("lsgan", "vanilla"):
            raise ValueError(
                f"smoothing={self.smoothing:g} is for losses with labels, not gan={self.gan}: leave it out, or set "
                "gan=lsgan or vanilla"
            )
        return self

    @property
    def fixed_size_fields(self) -> Mapping[str, str]:
        return {f"method.pool_size={self.pool_size}": "0"} if self.pool_size else {}

    def discriminator_loss(
        self,
        discriminator: nn.Module,
        *,
        real: Tensor,
        fake: Tensor,
        batched: bool,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Return a discriminator's loss, a scalar: the mean of its losses for real images and for fakes.

        `batched`: see `batched_forward`. `weights`, `(B,)`: fakes' weights; only heads on pretrained features use them.
        """
        real_logits, fake_logits = batched_forward(discriminator, real, fake, batched=batched)
        loss = gan_loss(real_logits, is_real=True, kind=self.gan, smoothing=self.smoothing)
        if weights is None or isinstance(fake_logits, Tensor):
            loss = loss + gan_loss(fake_logits, is_real=False, kind=self.gan)
        else:
            *feature_logits, patch_logits = fake_logits
            loss = loss + gan_loss(feature_logits, is_real=False, kind=self.gan, weights=weights)
            loss = loss + gan_loss(patch_logits, is_real=False, kind=self.gan)
        return loss * 0.5
