"""The flags and functions that `train` and `search` share: run length, run folder, the training itself."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from velogan.cli.fields import ConfigFlags, PresetFlags, has_data
from velogan.config import Config, differences
from velogan.engine.duration import Span, Unit
from velogan.engine.processes import is_main_process
from velogan.files import pluralize
from velogan.recipes import RECIPES
from velogan.types import domains_of

if TYPE_CHECKING:
    from velogan.methods.base import Spec
    from velogan.networks.generators import GeneratorConfig
    from velogan.networks.sizes import NetworkSize
    from velogan.training.session import Result
    from velogan.types import Direction


@dataclass(kw_only=True)
class RunCommand(PresetFlags):
    """A command that trains in a run folder."""

    out: Annotated[
        Path | None, arg(help="Run folder: created, or resumed if it contains this run.", metavar="FOLDER")
    ] = None
    minutes: Annotated[float | None, arg(help="Run length in minutes, excluding data preparation.")] = None
    images: Annotated[int | None, arg(help="Run length in images per domain.")] = None
    epochs: Annotated[float | None, arg(help="Run length in epochs of the larger domain.")] = None
    dry_run: Annotated[bool, arg(help="Print the settings and the estimated time and memory without training.")] = False

    def output_paths(self) -> list[tuple[str, Path]]:
        return [("--out", self.out)] if self.out is not None else []


def length_fields(command: RunCommand) -> dict[str, Any]:
    """Return the run length that the flags set, as fields of the section `train`; empty if they set none."""
    amounts: dict[Unit, float | None] = {"minutes": command.minutes, "images": command.images, "epochs": command.epochs}
    lengths: dict[Unit, float] = {unit: amount for unit, amount in amounts.items() if amount is not None}
    if len(lengths) > 1:
        raise ValueError(f"--{' and --'.join(lengths)} contradict each other: give one length")
    for unit, amount in lengths.items():
        if not amount > 0:
            raise ValueError(f"--{unit} {amount:g}: give a number above 0")
        return {"length": str(Span(amount, unit))}
    return {}


def check_data(command: ConfigFlags, *presets: str) -> None:
    """Raise ValueError if no training images are named and a preset does not include its own."""
    if not has_data(command, *presets):
        raise ValueError("--data is missing: give a folder with trainA and trainB, two folders, or apples2oranges")


def check_width(hidden: int | None) -> None:
    """Raise ValueError if --hidden is not a valid number of feature maps."""
    if hidden is not None and not 1 <= hidden <= 4096:
        raise ValueError(f"--hidden {hidden}: give a whole number from 1 to 4096")


def run_training(command: RunCommand, config: Config, argv: list[str], *, address: str | None = None) -> Result:
    """Train in the folder of --out, with progress on standard error.

    argv: the complete command line, for the run's record
    address: address of a running Ray cluster, for training by several processes; None: start Ray on this machine
    """
    if command.out is None:
        raise ValueError("--out is missing: give the folder for the run")
    from velogan.observe.progress import Display

    if config.train.exchange_every is None:
        from velogan.training.run import train
    else:
        from velogan.training.phase_workers.run import train as train_with_ray

        train = partial(train_with_ray, address=address)
    preset = str(command.config) if command.config else command.preset
    with Display(quiet=not is_main_process()) as display:
        result = train(
            config,
            command.out,
            display=display,
            origin={
                "preset": preset,
                "command": shlex.join(["velogan", *argv]),
                "changed": {name: old for name, (_, old) in differences(config, RECIPES[command.preset]()).items()},
            },
            started_at=command.started_at,
        )
        state = "done" if result.finished else "stopped (run the same command again to resume)"
        report = command.out / "report.html"
        display.print_line(f"{state}: trained on {pluralize(result.images_seen, 'image')} per domain; report: {report}")
    return result


def print_sizes(
    generators: Mapping[Direction, GeneratorConfig], spec: Spec, *, side: int
) -> dict[Direction, NetworkSize]:
    """Print the generators' sizes and return them by direction; `side`: height and width of the input."""
    from velogan.networks.sizes import describe_sizes, network_size

    sizes: dict[Direction, NetworkSize] = {}
    for direction, generator in generators.items():
        source, target = domains_of(direction)
        in_channels, out_channels = spec.channels[source], spec.channels[target]
        sizes[direction] = network_size(generator, in_channels=in_channels, out_channels=out_channels, side=side)
    print(describe_sizes(sizes, side=side), file=sys.stderr)
    return sizes
