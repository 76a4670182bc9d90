"""Makes a set whose domains look nothing alike: grey photographs from above under speckle, and coloured ones.

    python -m benchmarks.speckle ../shared/data/maps SETS/speckle

Of the photographs in MAPS/trainA, the first half by name becomes domain A, and the second half, other places, domain
B; those in MAPS/testA become both, so that each is the other's truth. They are cut into squares, which training and
scoring at `--image-size` do not resize, so that the speckle is as fine as a pixel. In domain A they are grey, times
gamma noise of mean 1 and `LOOKS` looks, as of radar, clipped, and saved as RGB. `--seed` draws the noise.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from velogan.data.config import DataConfig
from velogan.data.pictures.images import read_picture, save_picture
from velogan.data.pictures.picture import Picture

LOOKS = 4
"""The variance of the speckle is one over this."""

LUMA = (0.299, 0.587, 0.114)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("maps", type=Path, help="the set maps: photographs in trainA and testA")
    parser.add_argument("out", type=Path)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, data = np.random.default_rng(options.seed), DataConfig(crop_size=options.image_size)
    train, test = (sorted((options.maps / split).iterdir()) for split in ("trainA", "testA"))
    places = {"trainA": train[: len(train) // 2], "trainB": train[len(train) // 2 :], "testA": test, "testB": test}
    for folder, photographs in places.items():
        (options.out / folder).mkdir(parents=True, exist_ok=True)
        side = data.load_side if folder.startswith("train") else data.crop_size
        for photograph in photographs:
            for number, square in enumerate(squares(read_picture(photograph).pixels, side)):
                pixels = speckled(square, rng) if folder.endswith("A") else square
                save_picture(options.out / folder / f"{photograph.stem}_{number}.png", Picture(pixels))


def squares(pixels: np.ndarray, side: int) -> Iterator[np.ndarray]:
    """Cut `(H, W, C)` into as many squares `(side, side, C)` as fit, row by row."""
    for top in range(0, pixels.shape[0] - side + 1, side):
        for left in range(0, pixels.shape[1] - side + 1, side):
            yield np.ascontiguousarray(pixels[top : top + side, left : left + side])


def speckled(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return `(H, W, 3)` of 8 bits as grey, each pixel times gamma noise, with three equal channels."""
    grey = pixels @ np.array(LUMA)
    noisy = grey * rng.gamma(LOOKS, 1 / LOOKS, grey.shape)
    return np.repeat(noisy.round().clip(0, 255).astype(np.uint8)[..., None], 3, axis=2)


if __name__ == "__main__":
    main()
