"""How far a picture translated in tiles is from the same picture translated whole, and where.

    python -m benchmarks.seams RUN PICTURE TILE DIFFERENCE.png

Prints the mean and the largest difference in levels of 8 bits; the difference picture is twenty times as bright.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from velogan.translate.files import translate
from velogan.translate.model import load_translator


def main(run: Path, picture: Path, tile: int, difference: Path) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_translator(run, device=device, fast=True)
    made = {}
    with tempfile.TemporaryDirectory() as folder:
        for side in (0, tile):
            file = Path(folder) / f"{side}.png"
            summary = translate(model, picture, file, tile=side)
            if summary.failed or summary.tiled != bool(side):
                raise SystemExit(f"tile={side}: {summary}")
            made[side] = np.asarray(Image.open(file)).astype(int)
    off = abs(made[tile] - made[0])
    Image.fromarray((20 * off.max(axis=2)).clip(0, 255).astype(np.uint8)).save(difference)
    print(json.dumps({"tile": tile, "mean": round(float(off.mean()), 4), "max": int(off.max())}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
