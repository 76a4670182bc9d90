"""Options for translating files."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from velogan.data.pictures.images import SUFFIXES
from velogan.translate.large import Tiling

_PIXELS = 256 * 256


@dataclass(frozen=True, kw_only=True)
class TranslateOptions:
    """The options of `translate`. Raises ValueError if `format` or `tile` is invalid.

    overwrite: replace files that exist; otherwise they are skipped
    format: file format of all results (png, tiff, ...); None: each picture keeps its own
    tile: side in pixels of the tiles that large pictures are cut into; None: automatic, 0: no tiles
    smooth: weight in [0, 1) of the previous output frame if the input is a video; see `videos.Smoother`
    batch_pixels: maximum number of pixels in a batch; None: automatic
    """

    overwrite: bool = False
    format: str | None = None
    tile: int | None = None
    smooth: float = 0.0
    batch_pixels: int | None = None

    def __post_init__(self) -> None:
        if self.format is not None and self.suffix not in SUFFIXES:
            formats = ", ".join(sorted(suffix[1:] for suffix in SUFFIXES))
            raise ValueError(f"format={self.format}: not a known format; choose one of {formats}")
        if self.tile is not None and self.tile < 0:
            raise ValueError(f"tile={self.tile}: not a side in pixels; give a positive number, or 0 for no tiles")

    @property
    def suffix(self) -> str | None:
        """The suffix of all results; None: each picture keeps its own."""
        return self.format and f".{self.format}"

    def max_batch_pixels(self, device: torch.device) -> int:
        """Return the maximum number of pixels in a batch; on a CPU larger batches gain nothing and exceed the cache."""
        return self.batch_pixels or _PIXELS * (1 if device.type == "cpu" else 16)

    def images_per_batch(self, device: torch.device, tiles: Tiling | None, pixels: int) -> int:
        """Return the number of images, of `pixels` pixels each, in a batch: 1 if they are translated in `tiles`."""
        return 1 if tiles else max(1, self.max_batch_pixels(device) // pixels)
