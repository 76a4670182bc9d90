"""How much do films flicker, and what does `--smooth` take away and spoil?

    python -m benchmarks.flicker RUN [--frames 48] [--noise 4] [--smooth 0 0.5 0.8 0.9]

RUN was trained on apples2oranges. The clip is rendered: an apple moves, in a circle, over a still picture with another
apple, and each frame has noise of its own. What the network should make of it is known, without the noise. Figures, in
levels of 255, means over frames and three clips:

    still    the mean difference between a frame and the next, where the clean input stays the same: flicker
    object   the same on the still apple alone, which the network has to change
    error    the mean difference from the truth, still: where the clean input stays; moving: where the apple is or was
    late     the mean difference from the same frame without smoothing, where the apple is or was: what smoothing drags
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from velogan.data.rendered.apples2oranges import render
from velogan.translate.films import Smoother, translated
from velogan.translate.large import Settings
from velogan.translate.model import load_translator

CLIPS = 3


def clip(number: int, *, side: int, frames: int, noise: float) -> dict[str, np.ndarray]:
    """`(T, H, W, 3)` given, clean and truth; `(T, H, W)` where the moving apple is; `(H, W)` where the still one is."""
    scene, other = (render("test", "A", 2 * number + one, image_size=side, seed=0) for one in (0, 1))
    random = np.random.default_rng(number)
    made: dict[str, list[np.ndarray]] = {"given": [], "clean": [], "truth": [], "mask": []}
    for index in range(frames):
        turn = 2 * np.pi * index / frames
        move = (round(side / 5 * np.sin(turn)), round(side / 5 * np.cos(turn)))
        mask = _moved(other.mask, move) > 0
        clean = np.where(mask[..., None], _moved(other.image, move), scene.image)
        made["mask"].append(mask)
        made["clean"].append(clean)
        made["truth"].append(np.where(mask[..., None], _moved(other.truth, move), scene.truth))
        made["given"].append((clean + random.normal(0, noise, clean.shape)).round().clip(0, 255).astype(np.uint8))
    return {name: np.stack(frames) for name, frames in made.items()} | {"object": scene.mask > 0}


def _moved(array: np.ndarray, by: tuple[int, int]) -> np.ndarray:
    """Moved down and right, with zeros where nothing comes from."""
    result = np.zeros_like(array)
    height, width = array.shape[:2]
    (down, right) = by
    rows, columns = slice(max(0, down), height + min(0, down)), slice(max(0, right), width + min(0, right))
    from_rows, from_columns = slice(max(0, -down), height - max(0, down)), slice(max(0, -right), width - max(0, right))
    result[rows, columns] = array[from_rows, from_columns]
    return result


def figures(shown: np.ndarray, plain: np.ndarray, film: dict[str, np.ndarray]) -> dict[str, float]:
    """The figures of one clip; the first frames, where smoothing has nothing to go by, count too."""
    shown, plain = shown.astype(float), plain.astype(float)
    step = np.abs(np.diff(shown, axis=0)).mean(-1)
    still = ~(film["mask"][1:] | film["mask"][:-1])
    touched = ~still
    error = np.abs(shown - film["truth"]).mean(-1)[1:]
    late = np.abs(shown - plain).mean(-1)[1:]
    return {
        "still": step[still].mean(),
        "object": step[still & film["object"]].mean(),
        "error_still": error[still].mean(),
        "error_moving": error[touched].mean(),
        "late": late[touched].mean(),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--frames", type=int, default=48)
    parser.add_argument("--noise", type=float, default=4.0)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--smooth", type=float, nargs="+", default=[0.0, 0.5, 0.8, 0.9])
    asked = parser.parse_args()
    model = load_translator(asked.run)
    rows: dict[str, list[dict[str, float]]] = {}
    for number in range(CLIPS):
        film = clip(number, side=asked.side, frames=asked.frames, noise=asked.noise)
        both = list(translated(model, film["given"], Settings(False, 0, 2**16), scratch=Path()))
        plain = np.stack([made for _, made in both])
        rows.setdefault("input", []).append(figures(film["given"], film["given"], film))
        for share in asked.smooth:
            smoother = Smoother(share)
            shown = np.stack([smoother(given, made) for given, made in both])
            rows.setdefault(f"smooth {share}", []).append(figures(shown, plain, film))
    means = {
        name: {key: round(float(np.mean([one[key] for one in of])), 2) for key in of[0]} for name, of in rows.items()
    }
    print(json.dumps(means, indent=1))


if __name__ == "__main__":
    main()
