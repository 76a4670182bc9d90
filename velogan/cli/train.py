"""`velogan train`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from velogan.cli.dry_run import dry_run
from velogan.cli.fields import PresetFlag, base_config, configure, named_preset, sized, value_of
from velogan.cli.filling import Filling, check_data, check_hidden, fill, length, show_sizes
from velogan.cli.flags import Outcome
from velogan.config import SIZES, Config, read_config
from velogan.engine.processes import is_main_process
from velogan.files import counted
from velogan.recipes import DEFAULT, RECOMMENDED

EXCHANGED_STEPS = 5
"""With --modules: after so many steps the nodes exchange their networks; as good as one process (docs/scale.md)."""


@dataclass(kw_only=True)
class Train(Filling):
    """Flags of `velogan train`.

    velogan train --data horse2zebra --out runs/zebras

    Without a preset this is the recommended recipe, at a size that this machine bears; --minutes sets its length.
    """

    FIRST = ("preset", "data", "out", "images", "minutes", "epochs", "size", "image_size", "method", "seed", "start")
    FIRST += ("config", "dry_run", "json")

    preset: PresetFlag = RECOMMENDED
    start: Annotated[
        Path | None,
        tyro.conf.arg(
            help="Begin with the networks of this run or file of weights, ours or of the reference implementation.",
            metavar="RUN|FILE",
        ),
    ] = None
    genotype: Annotated[
        Path | None,
        tyro.conf.arg(
            help="Take generators and discriminators from this file, which an architecture search wrote.",
            metavar="FILE",
        ),
    ] = None
    hidden: Annotated[
        int | None,
        tyro.conf.arg(
            help="With --genotype: feature maps of the encoding, H. Default: as many as the preset's generators have.",
            metavar="H",
        ),
    ] = None
    match_size: Annotated[
        str | None,
        tyro.conf.arg(
            help="With --genotype, instead of --hidden: the H at which both generators together have the bytes of "
            "two ResNet-9 of this width, within 1 %: C64 are the paper's.",
            metavar="C64",
        ),
    ] = None
    sizes_only: Annotated[
        bool,
        tyro.conf.arg(
            help="With --genotype: keep the preset's networks, and make each generator as large as the genotype's by "
            "its width alone. This is the paper's C'64, which shows what unequal sizes are worth without a search."
        ),
    ] = False

    modules: Annotated[
        bool,
        tyro.conf.arg(
            help="Train each module of the method on a node of its own, under Ray (extra scale), with copies of the "
            "other networks that are exchanged every five steps, which costs no quality; --train.exchange-every "
            "sets how often (docs/scale.md)."
        ),
    ] = False
    address: Annotated[
        str | None,
        tyro.conf.arg(
            help="With --modules: of a Ray that runs already, as auto. Default: one is started on this machine.",
            metavar="HOST:PORT|auto",
        ),
    ] = None

    @classmethod
    def preset_of(cls, argv: Sequence[str]) -> str:
        """Where none is named, the recommended one; with another method or networks the one they are compared with."""
        others = any(value_of(argv, flag) for flag in ("--method", "--genotype", "--config"))
        return named_preset(argv) or (DEFAULT if others else RECOMMENDED)

    @classmethod
    def base(cls, argv: Sequence[str]) -> Config:
        """What the flags change: without a preset, the run that --out holds, or the recipe for this machine."""
        if cls.preset_of(argv) != RECOMMENDED:
            return super().base(argv)
        out, device = value_of(argv, "--out"), value_of(argv, "--engine.device") or "auto"
        if named_preset(argv) != RECOMMENDED and out and (Path(out) / "config.yaml").is_file():
            return sized(argv, read_config(Path(out)))
        return base_config(argv, RECOMMENDED if device.startswith(("auto", "cuda")) else "fast")

    def execute(self, argv: list[str]) -> Outcome:
        config = configure_train(self)
        if self.preset == RECOMMENDED and is_main_process():
            print(_what_is_recommended(config), file=sys.stderr)
        if self.dry_run:
            return dry_run(config, usual=Config().change(method=config.method.kind), quiet=self.json), 0
        return dataclasses.asdict(fill(self, config, argv, address=self.address)), 0


def configure_train(asked: Train) -> Config:
    """The configuration that the flags of `train` add up to."""
    train = length(asked)
    config = configure(asked)
    check_data(asked, asked.preset)
    config = _of_genotype(asked, config)
    if asked.start is not None:
        train["start"] = str(asked.start)
    if asked.modules and config.train.exchange_every is None:
        train["exchange_every"] = f"{EXCHANGED_STEPS * config.images_per_update} images"
    if asked.address is not None and not asked.modules and config.train.exchange_every is None:
        raise ValueError(f"--address {asked.address} is of a Ray for nodes: add --modules, or leave it out")
    return config.change(train=train)


def _what_is_recommended(config: Config) -> str:
    """What was picked where no preset is named, and why."""
    from velogan.engine.device import resolve_device

    generator, side = config.generator, config.data.crop_size
    sizes = {(dial["channels"], dial["blocks"]): name for name, dial in SIZES.items()}
    size = sizes.get((generator.channels, generator.blocks))
    networks = f"size {size}" if size else counted(generator.channels, "channel")
    device = resolve_device(config.engine.device).type
    pictures = f"squares of {side}x{side}" if config.data.crop else "whole pictures"
    return (
        f"the recommended recipe: {networks}, {pictures}, {config.train.length}, as a "
        f"{'GPU' if device == 'cuda' else device.upper()} bears; --size, --image-size and --minutes change it"
    )


def _of_genotype(asked: Train, config: Config) -> Config:
    """With the networks of --genotype; their sizes are printed."""
    from velogan.networks.genotype import read_genotype

    given = {"--hidden": asked.hidden, "--match-size": asked.match_size}
    named = [f"{flag} {value}" for flag, value in given.items() if value is not None]
    if asked.genotype is None:
        if named:
            raise ValueError(f"{named[0]} is the width of a genotype's networks: add --genotype FILE, or leave it out")
        if asked.sizes_only:
            raise ValueError("--sizes-only takes the sizes of a genotype: add --genotype FILE, or leave it out")
        return config
    if len(named) > 1:
        raise ValueError(f"{' and '.join(named)} contradict each other: give one of the two")
    check_hidden(asked.hidden)
    found = config.built_from(read_genotype(asked.genotype), hidden=asked.hidden, match=asked.match_size)
    config = config.scaled_to(found) if asked.sizes_only else found
    spec = config.spec
    show_sizes({way: spec.generators[way] for way in config.method.directions}, spec)
    return config
