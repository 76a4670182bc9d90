"""The shared words of all rooms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor, nn

Image = Tensor
"""One image or a batch of images: `(C, H, W)` or `(B, C, H, W)`, float, values in [-1, 1]."""

Batch = dict[str, Tensor]
"""Named tensors of one step. `A` and `B` are `(B, C, H, W)` float32 in [-1, 1], one per domain."""

Nets = Mapping[str, nn.Module]
"""Networks by role, as each method names them: `G_A` (A to B), `D_A` (judges domain B)."""

Letter = Literal["A", "B"]
"""A domain."""

Direction = Literal["a2b", "b2a"]
"""A way to translate."""

GENERATOR_FILES: dict[Direction, str] = {"a2b": "G_A", "b2a": "G_B"}
"""The names under which whole generators are kept, by direction: those of the reference implementation."""
