"""`velogan search`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from velogan.cli.dry_run import dry_run
from velogan.cli.fields import configure, load_file_or_preset, value_of
from velogan.cli.flags import Outcome
from velogan.cli.run_command import RunCommand, check_data, check_width, length_fields, print_sizes, run_training
from velogan.config import SIZES, Config, read_config
from velogan.engine.processes import is_main_process
from velogan.recipes import DEFAULT, to_search
from velogan.search.method import SEARCHABLE

if TYPE_CHECKING:
    from velogan.networks.generators import GeneratorConfig
    from velogan.training.session import Result
    from velogan.types import Direction


PAPER_LENGTH = "400 epochs"
"""Default length of a search: "the maximum search epoch" of the CycleGANAS paper, section 4."""


@dataclass(kw_only=True)
class Search(RunCommand):
    """Flags of `velogan search`.

    Run the same command again to resume. The result is RUN/genotype.json, for `velogan train --genotype`.

    velogan search --data horse2zebra --out searches/zebras
    """

    HELP_FLAGS = (
        "preset data out images minutes epochs size image_size space method inner hidden cells seed config device "
        " dry_run json"
    )

    method: Annotated[
        str | None,
        arg(
            help="Training scheme of the architecture weights (--method.scheme). Default: one-step.",
            metavar="one-step|two-step|two-domains|halves|swapped-halves",
        ),
    ] = None
    inner: Annotated[
        str | None,
        arg(
            help="Method to find networks for; its fields are --method.inner.FIELD. Default: the preset's.",
            metavar="|".join(SEARCHABLE),
        ),
    ] = None
    hidden: Annotated[
        int | None,
        arg(
            help="Feature maps of the encoding during the search; the result can be built in any width. Default: a "
            "quarter of the preset's."
        ),
    ] = None
    cells: Annotated[
        int | None,
        arg(
            help="Number of cells of a generator, including one encoding and one decoding cell. Default: two more than "
            "the preset has blocks."
        ),
    ] = None
    space: Annotated[
        Literal["code", "paper"],
        arg(
            help="Search space of the CycleGANAS authors' code, which has found better networks here, or of the paper."
        ),
    ] = "code"

    @classmethod
    def base_config(cls, argv: Sequence[str]) -> Config:
        """Return the configuration of a search for the preset's networks; the default length is the paper's."""
        base, size = load_file_or_preset(argv, next(iter(argv), DEFAULT)), value_of(argv, "--size")
        if value_of(argv, "--config") is None and base.train.length == Config().train.length:
            base = base.change(train={"length": PAPER_LENGTH})
        return to_search(base.with_size(size) if size in SIZES else base, inner=value_of(argv, "--inner"))

    def execute(self, argv: list[str]) -> Outcome:
        if self.cells is not None and not 2 <= self.cells <= 100:
            raise ValueError(f"--cells {self.cells}: give a whole number from 2 to 100")
        config = configure_search(self)
        if self.dry_run:
            return dry_run(config, self.out, defaults=self.base_config([]), quiet=self.json), 0
        result = run_training(self, config, argv)
        return _describe_result(result) if is_main_process() else {}, 0


def configure_search(command: Search) -> Config:
    """Return the configuration that the flags of `search` define."""
    train = length_fields(command)
    check_width(command.hidden)
    config = configure(command)
    check_data(command, command.preset)
    overrides: dict[str, dict[str, Any]] = {
        "method": {"scheme": command.method},
        "generator": {
            "channels": command.hidden,
            "blocks": None if command.cells is None else command.cells - 2,
            "space": command.space,
        },
        "discriminator": {"space": command.space if config.discriminator.network == "cells" else None},
    }
    sections = {
        section: {name: value for name, value in fields.items() if value is not None}
        for section, fields in overrides.items()
    }
    return config.change(**sections, train=train)


def _describe_result(result: Result) -> dict[str, Any]:
    """Return the result of a search for --json; print the path of its genotype and the sizes of its generators."""
    from velogan.networks.genotype import read_genotype
    from velogan.search.history import GENOTYPE_FILE

    file, config = result.run / GENOTYPE_FILE, read_config(result.run)
    genotype, spec = read_genotype(file), config.spec
    generators: dict[Direction, GeneratorConfig] = {}
    for direction, operations in genotype.generators.items():
        channels = genotype.hidden.get(direction, config.generator.encoding_channels)
        update = {"operations": operations, "channels": channels}
        generators[direction] = spec.generators[direction].model_copy(update=update)
    side = config.data.crop_size
    sizes = print_sizes(generators, spec, side=side)
    print(f"genotype: {file}", file=sys.stderr)
    return {
        "run": result.run,
        "genotype": file,
        "sizes": {
            direction: {
                "hidden": generators[direction].channels,
                "side": side,
                **dataclasses.asdict(size),
                "bytes": size.bytes,
            }
            for direction, size in sizes.items()
        },
        "images_seen": result.images_seen,
        "seconds": result.seconds,
    }
