"""Loss curves of the engine's modes from one seed, on rendered apples to oranges at 64x64.

    python -m benchmarks.curves OUT.json [STEPS] [MODE ...]

Writes a list with an entry per mode: `mode`, `images` seen and the generators' total `loss`, the mean of the ten steps
up to there. Default: the modes that suit this machine.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from velogan.data.sets.pair import open_data
from velogan.engine.duration import parse_length, parse_span
from velogan.engine.trainer import Hook
from velogan.observe.progress import Display
from velogan.recipes import cyclegan
from velogan.training.build import build_trainer
from velogan.training.engine_settings import resolve_engine

EVERY = 10


def curve(mode: str, *, steps: int) -> dict[str, Any]:
    """Train `steps` steps in `mode`; return its entry."""
    config = (
        cyclegan()
        .with_size("xs")
        .change(data={"crop_size": 64}, train={"length": f"{steps} images"}, engine={"mode": mode})
    )
    config = config.model_copy(update={"engine": resolve_engine(config)[0]})
    with Display() as display:
        trainer = build_trainer(config, open_data(config.data, task=display.task, print_line=display.print_line))
    length = parse_length(config.train.length, images_per_epoch=trainer.images_per_epoch)
    images: list[int] = []
    loss: list[float] = []

    def record(number: int) -> None:
        images.append(number)
        loss.append(trainer.stats.tick()["generator/total"])

    trainer.run(length, hooks=[Hook(parse_span(f"{EVERY} images"), record)])
    print(f"{mode}: {loss[0]:.3f} ... {loss[-1]:.3f}", flush=True)
    return {"mode": mode, "images": images, "loss": loss}


def main(out: Path, steps: int, modes: list[str]) -> None:
    """Train in all modes, one after the other."""
    if not modes:
        cuda = ["graph", "streams"] if torch.cuda.is_available() else ["auto"]
        modes = ["reference", "eager", *cuda]
    out.write_text(json.dumps([curve(mode, steps=steps) for mode in modes]) + "\n")


if __name__ == "__main__":
    file, *rest = sys.argv[1:]
    main(Path(file), int(rest[0]) if rest else 400, rest[1:])
