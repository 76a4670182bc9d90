"""How smooth translated volumes are from slice to slice, with and without `data.neighbours`.

`DATA` holds trainA, trainB, testA and testB of slices `CASEnnn.png` (nnn: the slice), whose test halves are aligned.
They become small NIfTI volumes; a run is trained on them for each number of neighbours, and its test volumes are held
against the true ones. Differences are shares of the range of values:

    python -m benchmarks.volumes DATA OUT --images 2000
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np
from nibabel.nifti1 import Nifti1Image
from PIL import Image

import velogan
from velogan.translate.files import translate
from velogan.translate.model import load_translator

SIDE = 64
FULL = 1000  # of `data.sets.slices.OWN_RANGE`


def volumes(source: Path, target: Path) -> None:
    """Write the slices of each case as a volume."""
    cases = defaultdict(list)
    for file in sorted(source.glob("*.png")):
        cases[file.stem[:-3]].append(np.rot90(np.asarray(Image.open(file).convert("L").resize((SIDE, SIDE))), -1))
    target.mkdir(parents=True, exist_ok=True)
    for case, slices in cases.items():
        volume = np.stack(slices, axis=2).astype(np.float32)
        Nifti1Image(volume, np.eye(4)).to_filename(target / f"{case}.nii.gz")


def figures(made: Path, truth: Path) -> np.ndarray:
    """Mean over volumes: flicker of the translation, flicker of the true volume, mean absolute error."""
    found = []
    for file in sorted(truth.glob("*.nii.gz")):
        one, other = (np.asarray(Nifti1Image.from_filename(path).dataobj) for path in (made / file.name, file))
        low, high = np.percentile(other, (0.5, 99.5))
        other = ((other - low) / (high - low) * FULL).clip(0, FULL)
        found.append([*(np.abs(np.diff(x, n=2, axis=2)).mean() for x in (one, other)), np.abs(one - other).mean()])
    return np.mean(found, axis=0) / FULL


def main() -> None:
    """Trains, translates and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=2)
    asked = parser.parse_args()
    for split in ("trainA", "trainB", "testA", "testB"):
        volumes(asked.data / split, asked.out / "volumes" / split)
    for neighbours in (0, 1):
        for seed in range(asked.seeds):
            run = asked.out / f"{neighbours}-{seed}"
            config = (
                velogan.preset("cyclegan")
                .sized("xs")
                .change(
                    data={"path": (str(asked.out / "volumes"),), "crop_size": SIDE, "load_size": SIDE}
                    | {"window": ("percentiles",), "neighbours": neighbours, "validation": 0},
                    train={"length": f"{asked.images} images", "seed": seed, "samples": 0, "tensorboard": False},
                    engine={"threads": 1},
                )
            )
            velogan.train(config, run)
            translated = run / "translated"
            translate(load_translator(run), asked.out / "volumes" / "testA", translated)
            flicker, true, error = figures(translated, asked.out / "volumes" / "testB")
            line = f"flicker {flicker:.4f}, true {true:.4f}, error {error:.4f}"
            print(f"neighbours {neighbours}, seed {seed}: {line}", flush=True)


if __name__ == "__main__":
    main()
