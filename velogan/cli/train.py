"""`velogan train`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from velogan.cli.dry_run import dry_run
from velogan.cli.fields import PresetFlag, apply_size, build_base_config, configure, find_preset, value_of
from velogan.cli.flags import Outcome
from velogan.cli.run_command import RunCommand, check_data, check_width, length_fields, print_sizes, run_training
from velogan.config import SIZES, Config, read_config
from velogan.engine.processes import is_main_process
from velogan.files import pluralize
from velogan.recipes import DEFAULT, RECOMMENDED

EXCHANGE_STEPS = 5
"""Steps between exchanges of networks with --modules; waiting this long costs no quality (docs/scale.md)."""


@dataclass(kw_only=True)
class Train(RunCommand):
    """Flags of `velogan train`.

    velogan train --data horse2zebra --out runs/zebras

    Without a preset, train the recommended one in a size for this machine; --minutes sets the length.
    """

    HELP_FLAGS = (
        "preset data out images minutes epochs size image_size method seed start genotype config device dry_run json"
    )

    preset: PresetFlag = RECOMMENDED
    start: Annotated[
        Path | None,
        arg(
            help="Run folder or weights file (velogan or reference implementation) to initialise matching networks "
            "from.",
            metavar="RUN|FILE",
        ),
    ] = None
    genotype: Annotated[
        Path | None, arg(help="Build generators and discriminators from this file of `velogan search`.", metavar="FILE")
    ] = None
    hidden: Annotated[
        int | None,
        arg(help="With --genotype: number of feature maps of the encoding. Default: as in the preset's generators."),
    ] = None
    match_size: Annotated[
        str | None,
        arg(
            help="With --genotype, instead of --hidden: choose the width so that both generators together are as "
            "large, within 1 %, as two ResNet-9 generators of this width (C64: the paper's).",
            metavar="C64",
        ),
    ] = None
    sizes_only: Annotated[
        bool,
        arg(
            help="With --genotype: use the preset's networks, with widths that make each generator as large as the "
            "genotype's. This is the paper's C'64, which shows the effect of unequal sizes without a search."
        ),
    ] = False

    modules: Annotated[
        bool,
        arg(
            help="Train each module of the method in its own process under Ray (extra scale), with copies of the other "
            "networks; they are exchanged every five steps, or --train.exchange-every (docs/scale.md)."
        ),
    ] = False
    address: Annotated[
        str | None,
        arg(
            help="With --modules: address of a running Ray cluster. Default: start Ray on this machine.",
            metavar="HOST:PORT|auto",
        ),
    ] = None

    @classmethod
    def resolve_preset(cls, argv: Sequence[str]) -> str:
        """Return the named preset, else "cyclegan" for --method, --genotype or --config, else the recommended one."""
        is_other = any(value_of(argv, flag) for flag in ("--method", "--genotype", "--config"))
        return find_preset(argv) or (DEFAULT if is_other else RECOMMENDED)

    @classmethod
    def base_config(cls, argv: Sequence[str]) -> Config:
        """Return the defaults of field flags: from the preset or --config, or else from the run in --out."""
        if cls.resolve_preset(argv) != RECOMMENDED:
            return super().base_config(argv)
        out = value_of(argv, "--out")
        device = value_of(argv, "--device") or value_of(argv, "--engine.device") or "auto"
        if find_preset(argv) != RECOMMENDED and out and (Path(out) / "config.yaml").is_file():
            return apply_size(argv, read_config(Path(out)))
        return build_base_config(argv, RECOMMENDED if device.startswith(("auto", "cuda")) else "fast")

    def execute(self, argv: list[str]) -> Outcome:
        config = configure_train(self)
        if self.preset == RECOMMENDED and is_main_process():
            print(_describe_recommended(config), file=sys.stderr)
        if self.dry_run:
            return dry_run(config, self.out, defaults=Config().change(method=config.method.kind), quiet=self.json), 0
        return dataclasses.asdict(run_training(self, config, argv, address=self.address)), 0


def configure_train(command: Train) -> Config:
    """Return the configuration that the flags of `train` define."""
    train = length_fields(command)
    config = configure(command)
    check_data(command, command.preset)
    config = _apply_genotype(command, config)
    if command.start is not None:
        train["start"] = str(command.start)
    if command.modules and config.train.exchange_every is None:
        train["exchange_every"] = f"{EXCHANGE_STEPS * config.images_per_update} images"
    if command.address is not None and not command.modules and config.train.exchange_every is None:
        raise ValueError(f"--address {command.address} has no effect without --modules: add --modules or remove it")
    return config.change(train=train)


def _describe_recommended(config: Config) -> str:
    """Return a line with the settings of the recommended preset and the flags that change them."""
    from velogan.engine.device import resolve_device

    generator, side = config.generator, config.data.crop_size
    sizes = {(size["channels"], size["blocks"]): name for name, size in SIZES.items()}
    size = sizes.get((generator.channels, generator.blocks))
    networks = f"size {size}" if size else pluralize(generator.channels, "channel")
    device = resolve_device(config.engine.device).type
    images = f"crops of {side}x{side}" if config.data.crop else "uncropped images"
    return (
        f"the recommended preset for a {'GPU' if device == 'cuda' else device.upper()}: {networks}, {images}, "
        f"{config.train.length}; --size, --image-size and --minutes change it"
    )


def _apply_genotype(command: Train, config: Config) -> Config:
    """Apply --genotype, if given, to the networks of `config`, or only its sizes (--sizes-only); print the sizes."""
    from velogan.networks.genotype import read_genotype

    widths = {"--hidden": command.hidden, "--match-size": command.match_size}
    width_flags = [f"{flag} {value}" for flag, value in widths.items() if value is not None]
    if command.genotype is None:
        if width_flags:
            raise ValueError(
                f"{width_flags[0]} is the width of a genotype's networks: add --genotype FILE or remove it"
            )
        if command.sizes_only:
            raise ValueError("--sizes-only uses the sizes of a genotype: add --genotype FILE or remove it")
        return config
    if len(width_flags) > 1:
        raise ValueError(f"{' and '.join(width_flags)} contradict each other: give one of the two")
    check_width(command.hidden)
    genotype = read_genotype(command.genotype)
    with_genotype = config.with_genotype(genotype, hidden=command.hidden, match=command.match_size)
    config = config.match_size_of(with_genotype) if command.sizes_only else with_genotype
    spec = config.spec
    print_sizes(
        {direction: spec.generators[direction] for direction in config.method.directions},
        spec,
        side=config.data.crop_size,
    )
    return config
