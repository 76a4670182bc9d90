"""How much faster `velogan translate` is than a plain loop, on the same files, taking turns in one process.

    python -m benchmarks.translate RUN FOLDER [ROUNDS]

RUN: a run folder, or a `.safetensors` file; FOLDER: pictures. The plain loop reads, translates (float32, eager, one
picture) and saves one file after another with Pillow. Also prints how far the quick networks are from the plain one.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from velogan.data.sets.sources import list_images
from velogan.translate.files import translate
from velogan.translate.model import Translator, load_translator


def main(run: Path, folder: Path, rounds: int) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_translator(run, device=device, fast=True)
    names = list_images(folder)
    speeds: dict[str, list[float]] = {"plain": [], "velogan": []}
    with tempfile.TemporaryDirectory() as out:
        plain(model, folder, names[:1], Path(out))
        translate(model, folder / names[0], Path(out), overwrite=True)
        for _ in range(rounds):
            for name, seconds in (
                ("plain", plain(model, folder, names, Path(out) / "plain")),
                ("velogan", translate(model, folder, Path(out) / "velogan", overwrite=True).seconds),
            ):
                speeds[name].append(len(names) / seconds)
    figures: dict[str, object] = {
        "images": len(names),
        "threads": torch.get_num_threads(),
        "images_per_s": {name: [round(speed, 3) for speed in found] for name, found in speeds.items()},
        "ratio": [round(fast / slow, 2) for fast, slow in zip(speeds["velogan"], speeds["plain"])],
    }
    for rounded in (True, False):
        kind = str(model.dtype(rounded=rounded)).removeprefix("torch.")
        figures[f"levels_off_{kind}"] = levels_off(model, [folder / name for name in names], rounded=rounded)
    print(json.dumps(figures))


def plain(model: Translator, folder: Path, names: tuple[str, ...], out: Path) -> float:
    """Translate with a plain loop; return its seconds."""
    started = time.perf_counter()
    for name in names:
        pixels = np.array(Image.open(folder / name).convert("RGB"))
        with torch.no_grad():
            image = torch.from_numpy(pixels).permute(2, 0, 1)[None].float().to(model.device) / 127.5 - 1
            levels = ((model.net(image) + 1) * 127.5).round().clamp(0, 255).byte()
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(levels[0].permute(1, 2, 0).cpu().numpy()).save(out / name, quality=95)
    return time.perf_counter() - started


def levels_off(model: Translator, files: list[Path], *, rounded: bool) -> dict[str, float]:
    """Mean and largest difference to the plain network, in levels of 8 bits, before rounding."""
    means, largest = [], 0.0
    for file in files:
        pixels = torch.from_numpy(np.array(Image.open(file).convert("RGB"))).permute(2, 0, 1)[None]
        image = pixels.float() / 127.5 - 1
        off = (model.quickly(image, rounded=rounded) - model(image)).abs() * 127.5
        means.append(float(off.mean()))
        largest = max(largest, float(off.max()))
    return {"mean": round(float(np.mean(means)), 6), "max": round(largest, 5)}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 3)
