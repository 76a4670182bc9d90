"""What the commands that fill a run folder share: a length, a folder, the run itself."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from velogan.cli.fields import Configured, Fields, data_is_named
from velogan.config import Config, differences
from velogan.engine.duration import Span, Unit
from velogan.engine.processes import is_main_process
from velogan.files import counted
from velogan.methods.base import ends
from velogan.recipes import RECIPES

if TYPE_CHECKING:
    from velogan.methods.base import Spec
    from velogan.networks.generators import GeneratorConfig
    from velogan.networks.sizes import Size
    from velogan.training.session import Result
    from velogan.types import Direction


@dataclass(kw_only=True)
class Filling(Configured):
    """What every command that fills a run folder takes."""

    out: Annotated[
        Path | None,
        tyro.conf.arg(help="The run folder: made, or continued where it holds this run.", metavar="FOLDER"),
    ] = None
    minutes: Annotated[
        float | None,
        tyro.conf.arg(
            help="Length of the run in minutes, all counted but the preparing of pictures.", metavar="NUMBER"
        ),
    ] = None
    images: Annotated[
        int | None, tyro.conf.arg(help="Length of the run in images of each domain.", metavar="NUMBER")
    ] = None
    epochs: Annotated[
        float | None,
        tyro.conf.arg(help="Length in epochs, of as many images as the larger domain has.", metavar="NUMBER"),
    ] = None
    dry_run: Annotated[
        bool, tyro.conf.arg(help="Say what would be done, how long it takes and with how much memory, and stop.")
    ] = False

    def places(self) -> list[tuple[str, Path]]:
        return [("--out", self.out)] if self.out is not None and not self.dry_run else []


def length(asked: Filling) -> dict[str, Any]:
    """What the flags say of the run's length, as fields of the section train."""
    lengths: dict[Unit, float | None] = {"minutes": asked.minutes, "images": asked.images, "epochs": asked.epochs}
    given: dict[Unit, float] = {unit: amount for unit, amount in lengths.items() if amount is not None}
    if len(given) > 1:
        raise ValueError(f"--{' and --'.join(given)} contradict each other: give one length")
    for unit, amount in given.items():
        if not amount > 0:
            raise ValueError(f"--{unit} {amount:g}: give a number above 0")
    return {"length": " ".join(str(Span(amount, unit)) for unit, amount in given.items())} if given else {}


def check_data(asked: Fields, *presets: str) -> None:
    """ValueError where nobody said which pictures to train on, and the presets bring none."""
    if not data_is_named(asked, *presets):
        raise ValueError("--data is missing: name a folder with trainA and trainB, two folders, or apples2oranges")


def check_hidden(hidden: int | None) -> None:
    """ValueError where that is no number of feature maps."""
    if hidden is not None and not 1 <= hidden <= 4096:
        raise ValueError(f"--hidden {hidden}: give a whole number from 1 to 4096")


def fill(asked: Filling, config: Config, argv: list[str], *, address: str | None = None) -> Result:
    """Trains in the run folder that was asked for, with progress on standard error; `address` is of a Ray for nodes."""
    if asked.out is None:
        raise ValueError("--out is missing: name the folder that the run is kept in")
    from velogan.observe.progress import Display

    if config.train.exchange_every is None:
        from velogan.training.run import train
    else:
        from velogan.training.nodes.run import train as train_apart

        train = partial(train_apart, address=address)
    preset = str(asked.config) if asked.config else asked.preset
    with Display(quiet=not is_main_process()) as display:
        result = train(
            config,
            asked.out,
            display=display,
            origin={"preset": preset, "command": shlex.join(["velogan", *argv]), "changed": _changed(asked, config)},
            began=asked.began,
        )
        state = "done" if result.finished else "stopped, and the same command continues"
        display.say(f"{state}: {counted(result.images_seen, 'image')} seen; page: {asked.out / 'report.html'}")
    return result


def show_sizes(
    generators: Mapping[Direction, GeneratorConfig], spec: Spec, *, side: int = 256
) -> dict[Direction, Size]:
    """Of generators by direction; a table of them is printed."""
    from velogan.networks.sizes import size, table

    channels = {way: [spec.channels[letter] for letter in ends(way)] for way in generators}
    sizes: dict[Direction, Size] = {
        way: size(one, in_channels=channels[way][0], out_channels=channels[way][1], side=side)
        for way, one in generators.items()
    }
    print(table(list(sizes.values()), list(sizes), side=side), file=sys.stderr)
    return sizes


def _changed(asked: Filling, config: Config) -> dict[str, Any]:
    """The preset's values of the fields that differ from it."""
    return {name: preset for name, (_, preset) in differences(config, RECIPES[asked.preset]()).items()}
