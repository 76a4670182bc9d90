"""Sample pictures of a run, as PNG grids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image as PillowImage
from torch import Tensor

from velogan.files import atomic_write


def grid(rows: Tensor, *, gap: int = 2) -> np.ndarray:
    """Pictures side by side: `(R, K, C, H, W)` uint8 or float in [-1, 1] to `(height, width, 3)` uint8.

    `gap` grey pixels lie between pictures, none around them. Of one or two channels the first is shown in grey; of more
    than three, the first three are shown. NaN is black.
    """
    if rows.ndim != 5:
        raise ValueError(f"rows must be (R, K, C, H, W), got {tuple(rows.shape)}: add the missing dimensions")
    rows = rows.detach().cpu()
    if rows.dtype != torch.uint8:
        levels = rows.float().nan_to_num(nan=-1.0).clamp(-1, 1).add(1).mul(127.5)
        rows = levels.round().to(torch.uint8)
    pictures = as_rgb(rows)
    r, k, _, h, w = pictures.shape
    sheet = np.full((r, h + gap, k, w + gap, 3), 128, np.uint8)
    sheet[:, :h, :, :w] = pictures.permute(0, 3, 1, 4, 2).numpy()
    return sheet.reshape(r * (h + gap), k * (w + gap), 3)[: r * (h + gap) - gap, : k * (w + gap) - gap]


def as_rgb(pictures: Tensor) -> Tensor:
    """The three channels to show of `(..., C, H, W)`: the first three, or the first as grey."""
    if pictures.shape[-3] >= 3:
        return pictures[..., :3, :, :]
    return pictures[..., :1, :, :].expand(*pictures.shape[:-3], 3, *pictures.shape[-2:])


def write_grid(path: Path, rows: Tensor) -> None:
    """Writes `grid(rows)` as PNG; the file appears whole or not at all."""
    with atomic_write(Path(path)) as tmp_path:
        PillowImage.fromarray(grid(rows)).save(tmp_path, format="PNG", compress_level=3)
