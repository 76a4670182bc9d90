"""The shared words of all rooms."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

Image = Tensor
"""One image or a batch of images: `(C, H, W)` or `(B, C, H, W)`, float, values in [-1, 1]."""

Batch = dict[str, Tensor]
"""Named tensors of one step. `A` and `B` are `(B, C, H, W)` float32 in [-1, 1], one per domain."""

Nets = Mapping[str, nn.Module]
"""Networks by role, as each objective names them: `G_A` (A to B), `D_A` (judges domain B)."""
