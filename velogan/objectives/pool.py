"""The pool of earlier fakes shown to a discriminator (Shrivastava et al. 2017, section 2.3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FakePool(nn.Module):
    """A pool of up to `size` earlier fakes of `shape` (C, H, W), kept on the device.

    Until it is full it stores and returns each new image. Then, with probability one half, it returns a random stored
    image and stores the new one in its place; otherwise it returns the new one. With size 0 it returns each new image.
    A non-finite image is never stored: it would break a later step.
    """

    images: Tensor
    stored: Tensor

    def __init__(self, size: int, shape: tuple[int, int, int]):
        super().__init__()
        self.size = size
        self.register_buffer("images", torch.zeros(size, *shape))
        self.register_buffer("stored", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def forward(self, new: Tensor, uniform: Tensor) -> Tensor:
        """Store new images and return stored or new ones, `(B, C, H, W)` each, by `uniform`, `(2, B)` in [0, 1)."""
        if self.size == 0:
            return new
        return torch.cat([self._exchange(image, draws) for image, draws in zip(new.split(1), uniform.unbind(1))])

    def _exchange(self, new: Tensor, uniform: Tensor) -> Tensor:
        is_full = self.stored >= self.size
        slot = torch.where(is_full, (uniform[1] * self.size).long(), self.stored).view(1)
        old = self.images[slot]  # indexing keeps the memory layout of the images; index_select does not
        is_swapped = is_full & (uniform[0] > 0.5)
        is_finite = new.isfinite().all()
        self.images.index_copy_(0, slot, torch.where((is_full & ~is_swapped) | ~is_finite, old, new))
        self.stored.add_(is_finite).clamp_(max=self.size)
        return torch.where(is_swapped, old, new)
