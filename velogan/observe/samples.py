"""Sample images of a run, as PNG grids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image as PillowImage
from torch import Tensor

from velogan.files import atomic_write


def grid(rows: Tensor, *, gap: int = 2) -> np.ndarray:
    """Tile images in R rows and K columns: `(R, K, C, H, W)` uint8 or float in [-1, 1] to `(height, width, 3)` uint8.

    `gap`: grey pixels between images. With one or two channels the first is shown in grey; with more than three, the
    first three are shown. NaN is black.
    """
    if rows.ndim != 5:
        raise ValueError(f"rows must be (R, K, C, H, W), got {tuple(rows.shape)}: add the missing dimensions")
    rows = rows.detach().cpu()
    if rows.dtype != torch.uint8:
        levels = rows.float().nan_to_num(nan=-1.0).clamp(-1, 1).add(1).mul(127.5)
        rows = levels.round().to(torch.uint8)
    images = as_rgb(rows)
    r, k, _, h, w = images.shape
    sheet = np.full((r, h + gap, k, w + gap, 3), 128, np.uint8)
    sheet[:, :h, :, :w] = images.permute(0, 3, 1, 4, 2).numpy()
    return sheet.reshape(r * (h + gap), k * (w + gap), 3)[: r * (h + gap) - gap, : k * (w + gap) - gap]


def as_rgb(images: Tensor) -> Tensor:
    """Return `(..., 3, H, W)` to display from `(..., C, H, W)`: the first three channels, or the first one as grey."""
    if images.shape[-3] >= 3:
        return images[..., :3, :, :]
    return images[..., :1, :, :].expand(*images.shape[:-3], 3, *images.shape[-2:])


def write_grid(path: Path, rows: Tensor) -> None:
    """Write `grid(rows)` as PNG, atomically."""
    with atomic_write(Path(path)) as tmp_path:
        PillowImage.fromarray(grid(rows)).save(tmp_path, format="PNG", compress_level=3)
