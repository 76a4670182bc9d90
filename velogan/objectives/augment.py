"""Differentiable augmentation of what discriminators see ("Differentiable Augmentation", Zhao et al. 2020).

Real and made images are changed alike, and the generator's gradient passes through, so the discriminator cannot learn
its few pictures by heart and the generator does not learn the changes. Each image may be changed with a probability
only, which may follow from how sure the discriminator is ("Training Generative Adversarial Networks with Limited Data",
Karras et al. 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

Augmentation = Literal["colour", "shift", "cutout"]

DRAWS: dict[Augmentation, int] = {"colour": 3, "shift": 2, "cutout": 2}
"""Uniform numbers for an image."""

SHIFT, CUTOUT = 0.125, 0.5
"""Shares of a side: the farthest shift, and the square that is cut out."""

Probability = float | Literal["adaptive"]

TARGET, RISE = 0.6, 5000
"""Adaptive: the wanted mean sign of logits on real images (Karras et al. 2020, section 3), and the images in which a
probability can rise from 0 to 1. The paper has 500 thousand of 25 million; runs here are shorter."""

AUGMENT = (
    "What is changed at random in all images that a discriminator judges, real and made: colour, shift, cutout. It "
    "helps with few pictures and in short trainings."
)
"""What a method's field `augment` says of itself."""


def draws(kinds: Sequence[Augmentation]) -> int:
    """How many uniform numbers an image needs."""
    return sum(DRAWS[kind] for kind in kinds)


def augment(images: Tensor, uniform: Tensor, kinds: Sequence[Augmentation]) -> Tensor:
    """`images`, `(B, C, H, W)` in [-1, 1], each changed by its `uniform` numbers, `(draws(kinds), B)` in [0, 1)."""
    for kind in kinds:
        mine, uniform = uniform[: DRAWS[kind]], uniform[DRAWS[kind] :]
        images = _KINDS[kind](images, mine)
    return images


class Augmenter(nn.Module):
    """Changes what discriminators see, each image with a `probability`.

    `adaptive`: each of the `judges` has a probability of its own, a buffer, which begins at 0 and rises while its
    logits on real images are above `threshold` too often (`adapt`). Every call takes `count` uniform numbers for an
    image: those of `augment`, and with a probability below 1 one that decides.
    """

    probabilities: Tensor

    def __init__(self, kinds: Sequence[Augmentation], probability: Probability, *, judges: int, threshold: float):
        super().__init__()
        self.kinds, self.threshold = kinds, threshold
        self.count = draws(kinds) + (probability != 1) if kinds else 0
        self.fixed = None if probability == "adaptive" else probability
        if self.fixed is None:
            self.register_buffer("probabilities", torch.zeros(judges))

    def forward(self, images: Tensor, uniform: Tensor, *, judge: int) -> Tensor:
        """`images`, `(B, C, H, W)`, as the discriminator `judge` sees them; `uniform` is `(count, B)`."""
        made = augment(images, uniform, self.kinds)
        if self.fixed == 1:
            return made
        probability = self.probabilities[judge] if self.fixed is None else self.fixed
        return torch.where((uniform[-1] < probability).view(-1, 1, 1, 1), made, images)

    def of_judge(self, judge: int) -> list[Tensor]:
        """What is kept of one judge: its probability, where it is adaptive."""
        return [self.probabilities[judge]] if self.fixed is None else []

    @torch.no_grad()
    def adapt(self, on_real: Tensor | Sequence[Tensor], *, judge: int) -> dict[str, Tensor]:
        """Moves the probability of `judge` by its logits on real images; gives it for the log, where it is adaptive."""
        if self.fixed is not None:
            return {}
        heads = [on_real] if isinstance(on_real, Tensor) else on_real
        sure = torch.stack([(head.float() - self.threshold).sign().mean() for head in heads]).mean()
        rise = ((sure > TARGET).float() * 2 - 1) * (len(heads[0]) / RISE)
        return {"augment": self.probabilities[judge].add_(rise).clamp_(0, 1).clone()}


def _colour(images: Tensor, uniform: Tensor) -> Tensor:
    """Brightness plus up to 0.5, saturation times 0 to 2, contrast times 0.5 to 1.5."""
    brightness, saturation, contrast = (row.view(-1, 1, 1, 1) for row in uniform)
    images = images + (brightness - 0.5)
    grey = images.mean(1, keepdim=True)
    images = (images - grey) * (2 * saturation) + grey
    mean = images.mean((1, 2, 3), keepdim=True)
    return (images - mean) * (contrast + 0.5) + mean


def _shift(images: Tensor, uniform: Tensor) -> Tensor:
    """Moved by whole pixels, with zeros behind; a product with shifted unit matrices, which is the same each time."""
    rows, columns = (
        _moved(side, draw, dtype=images.dtype) for side, draw in zip((images.shape[2], images.shape[3]), uniform)
    )
    return rows[:, None] @ images @ columns[:, None].mT


def _moved(side: int, draw: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Matrices `(B, side, side)` that move a column of `side` pixels by up to `SHIFT`."""
    most = int(side * SHIFT + 0.5)
    by = (draw * (2 * most + 1)).floor() - most
    place = torch.arange(side, device=draw.device)
    return (place[:, None] - place == by[:, None, None]).to(dtype)


def _cutout(images: Tensor, uniform: Tensor) -> Tensor:
    """Zeros in a square of half the side, which may lie partly outside."""
    inside = []
    for side, draw in zip((images.shape[2], images.shape[3]), uniform):
        wide, place = int(side * CUTOUT + 0.5), torch.arange(side, device=images.device)
        first = (draw * (side + 1 - wide % 2)).floor()[:, None] - wide // 2
        inside.append((place >= first) & (place < first + wide))
    rows, columns = inside
    return images * ~(rows[:, None, :, None] & columns[:, None, None, :])


_KINDS = {"colour": _colour, "shift": _shift, "cutout": _cutout}
