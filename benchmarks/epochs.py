"""Time of an epoch by each method, compared with Table 1 of "Improving Cycle-GAN using Intel AI DevCloud" (2018).

    python -m benchmarks.epochs --data apple2orange --out epochs.json

Trains the presets alternately, on all threads, for a fraction of an epoch, and writes the time of an epoch of each.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table

from benchmarks.bench.cases import METHODS
from velogan.config import Config, fit_to_data
from velogan.data.sets.pair import TrainingData, open_data
from velogan.engine.duration import Span, parse_length
from velogan.engine.trainer import Hook
from velogan.files import write_text
from velogan.observe.machine import describe_machine
from velogan.observe.progress import Display
from velogan.recipes import RECIPES
from velogan.training.build import build_trainer
from velogan.training.engine_settings import resolve_engine

TABLE_1 = {
    1: (66.27, 32.92, 2.0128),
    2: (132.54, 65.84, 2.0130),
    3: (198.81, 98.76, 2.0138),
    15: (994.09, 493.80, 2.0131),
}
"""By number of epochs: the paper's minutes of Cycle-GAN, of the proposed architecture, and its speed-up."""

TURN = Span(10, "images")
"""Length of a turn."""


@dataclass
class Candidate:
    """A method's trainer, and the (images, seconds) of its turns."""

    config: Config
    data: TrainingData
    turns: list[tuple[int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        config, _ = fit_to_data(self.config, self.data.channels, self.data.crop_shapes(self.config.data))
        config = config.model_copy(update={"engine": resolve_engine(config)[0]})
        self.config, self.trainer = config, build_trainer(config, self.data)
        self.length = parse_length(config.train.length, images_per_epoch=self.trainer.images_per_epoch)

    def take_turn(self) -> tuple[int, float]:
        """Train for about `TURN`, as between two log lines of a run; return images and seconds."""
        trainer = self.trainer
        images, seconds = trainer.images, trainer.clock.seconds

        def stop(_: int) -> None:
            trainer.stats.tick()
            trainer.stop_requested = True

        trainer.stop_requested = False
        trainer.run(self.length, hooks=[Hook(TURN, stop)])
        assert trainer.images > images, "the run had already ended"
        return trainer.images - images, trainer.clock.seconds - seconds

    @property
    def images(self) -> int:
        """Images of all turns."""
        return sum(images for images, _ in self.turns)

    @property
    def minutes_of_epoch(self) -> float:
        """Minutes of an epoch at the mean speed of all turns."""
        return sum(seconds for _, seconds in self.turns) / self.images * self.trainer.images_per_epoch / 60


def measure_epochs(configs: Mapping[str, Config], *, fraction: float, display: Display) -> dict[str, Any]:
    """Train each of `configs`, one of which is named cyclegan, alternately until each has done `fraction` of an epoch.

    The first turn of each is not counted. All use the pictures of the first configuration. Raises `ValueError` for a
    fraction outside (0, 1].
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"--fraction {fraction}: give a share of an epoch, more than 0 and at most 1")
    data = open_data(next(iter(configs.values())).data, task=display.task, print_line=display.print_line)
    candidates = {name: Candidate(config, data) for name, config in configs.items()}
    epoch = max(candidate.trainer.images_per_epoch for candidate in candidates.values())
    for name, candidate in candidates.items():
        display.print_line(f"{name}: warming up")
        candidate.take_turn()
    while any(candidate.images < fraction * epoch for candidate in candidates.values()):
        for candidate in candidates.values():
            candidate.turns.append(candidate.take_turn())
        display.print_line(", ".join(f"{name} {candidate.images} of {epoch}" for name, candidate in candidates.items()))
    cyclegan = candidates["cyclegan"].minutes_of_epoch
    return {
        "machine": describe_machine(next(iter(candidates.values())).trainer.device),
        "images_of_epoch": epoch,
        "fraction": fraction,
        "table_1": {str(epochs): row for epochs, row in TABLE_1.items()},
        "rows": [
            {
                "method": name,
                "engine": candidate.config.engine.model_dump(mode="json"),
                "image_size": candidate.config.data.crop_size,
                "images": candidate.images,
                "seconds": sum(seconds for _, seconds in candidate.turns),
                "turns": candidate.turns,
                "minutes": {str(epochs): epochs * candidate.minutes_of_epoch for epochs in TABLE_1},
                "speed_up": cyclegan / candidate.minutes_of_epoch,
            }
            for name, candidate in candidates.items()
        ],
    }


def render_epochs(result: dict[str, Any]) -> Iterator[RenderableType]:
    """Yield the paper's table with our rows below it; ≈ marks extrapolated values."""
    table = Table(title="minutes by number of epochs", title_justify="left", box=SIMPLE_HEAD)
    for column in ("", *map(str, TABLE_1)):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)

    def add(name: str, show: Callable[[int], str], *, last: bool = False) -> None:
        table.add_row(name, *map(show, TABLE_1), end_section=last)

    add("paper: Cycle-GAN", lambda epochs: f"{TABLE_1[epochs][0]:.2f}")
    add("paper: proposal", lambda epochs: f"{TABLE_1[epochs][1]:.2f}")
    add("  speed-up", lambda epochs: f"{TABLE_1[epochs][2]:.4f}x", last=True)
    for row in result["rows"]:

        def show(epochs: int, row: dict[str, Any] = row) -> str:
            done = row["images"] / result["images_of_epoch"]
            return f"{'≈ ' if done < epochs else ''}{row['minutes'][str(epochs)]:.2f}"

        add(f"here: {row['method']}", show)
        if row["method"] != "cyclegan":
            add("  speed-up", lambda epochs, row=row: f"{row['speed_up']:.2f}x")
    yield table
    images, epoch = min(row["images"] for row in result["rows"]), result["images_of_epoch"]
    yield f"≈ extrapolated: {images} images of an epoch's {epoch} ({images / epoch:.1%}) were measured for each method."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--size", choices=["xs", "s", "m", "l"], default="l")
    parser.add_argument("--image-size", type=int, default=256)
    parser.add_argument("--fraction", type=float, default=0.02)
    args = parser.parse_args()
    data = {"path": args.data, "crop_size": args.image_size, "validation": 0}
    configs = {name: RECIPES[name]().with_size(args.size).change(data=data) for name in METHODS}
    with Display() as display:
        result = measure_epochs(configs, fraction=args.fraction, display=display)
    write_text(args.out, json.dumps(result, indent=1))
    for part in render_epochs(result):
        Console().print(part)


if __name__ == "__main__":
    main()
