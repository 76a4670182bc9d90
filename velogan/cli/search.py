"""`velogan search`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from velogan.cli.dry_run import dry_run
from velogan.cli.fields import configure, file_or_preset, value_of
from velogan.cli.filling import Filling, check_data, check_hidden, fill, length, show_sizes
from velogan.cli.flags import Outcome
from velogan.config import SIZES, Config, read_config
from velogan.engine.processes import is_main_process
from velogan.recipes import DEFAULT, to_search
from velogan.search.method import WRAPPED

if TYPE_CHECKING:
    from velogan.networks.generators import GeneratorConfig
    from velogan.training.session import Result
    from velogan.types import Direction


PAPER_LENGTH = "400 epochs"
"""Of a search, where nobody says how long: "the maximum search epoch" of section 4."""


@dataclass(kw_only=True)
class Search(Filling):
    """Flags of `velogan search`.

    The same command again goes on. What is found is RUN/genotype.json, which `velogan train --genotype` takes.

    velogan search --data horse2zebra --out searches/zebras

    velogan search --count
    """

    FIRST = ("preset", "data", "out", "images", "minutes", "epochs", "size", "image_size", "space", "method")
    FIRST += ("inner", "hidden", "cells", "seed", "config", "count", "dry_run", "json")

    count: Annotated[
        bool, tyro.conf.arg(help="Count the generators, the discriminators and all of them together, and stop.")
    ] = False
    method: Annotated[
        str | None,
        tyro.conf.arg(
            help="How the architecture weights are trained: --method.scheme. Default: one-step.",
            metavar="one-step|two-step|two-domains|halves|swapped-halves",
        ),
    ] = None
    inner: Annotated[
        str | None,
        tyro.conf.arg(
            help="The method whose networks are to be found; its fields are --method.inner.FIELD. Default: the "
            "preset's.",
            metavar="|".join(WRAPPED),
        ),
    ] = None
    hidden: Annotated[
        int | None,
        tyro.conf.arg(
            help="Feature maps of the encoding while searching; what is found is built in any width. Default: a "
            "quarter of the preset's.",
            metavar="H",
        ),
    ] = None
    cells: Annotated[
        int | None,
        tyro.conf.arg(
            help="Cells of a generator: one encodes, one decodes. Default: two more than the preset has blocks.",
            metavar="N",
        ),
    ] = None
    space: Annotated[
        Literal["code", "paper"],
        tyro.conf.arg(
            help="The search space of the authors' code, which has found better networks here, or that of their paper.",
            metavar="code|paper",
        ),
    ] = "code"

    @classmethod
    def base(cls, argv: Sequence[str]) -> Config:
        """A search of the preset's networks, as long as the paper's; presets of minutes keep theirs."""
        base, size = file_or_preset(argv, next(iter(argv), DEFAULT)), value_of(argv, "--size")
        if value_of(argv, "--config") is None and base.train.length == Config().train.length:
            base = base.change(train={"length": PAPER_LENGTH})
        return to_search(base.sized(size) if size in SIZES else base, inner=value_of(argv, "--inner"))

    def execute(self, argv: list[str]) -> Outcome:
        if self.cells is not None and not 2 <= self.cells <= 100:
            raise ValueError(f"--cells {self.cells}: give a whole number from 2 to 100")
        if self.count:
            return _count(self), 0
        config = configure_search(self)
        if self.dry_run:
            return dry_run(config, usual=self.base([]), quiet=self.json), 0
        result = fill(self, config, argv)
        return _found(result) if is_main_process() else {}, 0


def _count(asked: Search) -> dict[str, Any]:
    from velogan.networks.cells import count

    found = count(space=asked.space) if asked.cells is None else count(blocks=asked.cells - 2, space=asked.space)
    if not asked.json:
        for name, number in found._asdict().items():
            print(f"{name:<13} {number}  ({number:.3g})")
    return found._asdict()


def configure_search(asked: Search) -> Config:
    """The configuration that the flags of `search` add up to."""
    train = length(asked)
    check_hidden(asked.hidden)
    config = configure(asked)
    check_data(asked, asked.preset)
    given: dict[str, dict[str, Any]] = {
        "method": {"scheme": asked.method},
        "generator": {"channels": asked.hidden, "blocks": None if asked.cells is None else asked.cells - 2},
        "discriminator": {},
    }
    given["generator"]["space"] = asked.space
    given["discriminator"]["space"] = asked.space if config.discriminator.network == "cells" else None
    sections = {
        section: {name: value for name, value in fields.items() if value is not None}
        for section, fields in given.items()
    }
    return config.change(**sections, train=train)


def _found(result: Result) -> dict[str, Any]:
    """What a search has found, and how large that is, which is printed."""
    from velogan.networks.cells import enlarges
    from velogan.networks.genotype import read_genotype
    from velogan.search.recorder import GENOTYPE

    file, config = result.run / GENOTYPE, read_config(result.run)
    genotype, spec = read_genotype(file), config.spec
    own = config.generator.encoding
    generators: dict[Direction, GeneratorConfig] = {
        way: spec.generators[way].model_copy(update={"operations": names, "channels": genotype.hidden.get(way, own)})
        for way, names in genotype.generators.items()
    }
    side = config.data.crop_size
    sizes = show_sizes(generators, spec, side=side)
    if ways := [way for way, names in genotype.generators.items() if enlarges(names, genotype.space)]:
        print(
            f"{' and '.join(ways)}: both operations of the decoding cell interpolate, so pictures are made at a "
            "quarter of the size and enlarged. Search with --space code: a convolution is behind (docs/search.md)",
            file=sys.stderr,
        )
    print(f"found: {file}", file=sys.stderr)
    return {
        "run": result.run,
        "genotype": file,
        "sizes": {
            way: {"hidden": generators[way].channels, "side": side, **dataclasses.asdict(one), "bytes": one.bytes}
            for way, one in sizes.items()
        },
        "images_seen": result.images_seen,
        "seconds": result.seconds,
    }
