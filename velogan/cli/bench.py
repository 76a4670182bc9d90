"""`velogan bench`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import tyro

from velogan.cli.asked import Asked, Json, Outcome
from velogan.recipes import BENCHED


@dataclass(kw_only=True)
class Bench(Asked):
    """Flags of `velogan bench`.

    velogan bench --only resnet_6,size=64
    """

    only: Annotated[
        str | None,
        tyro.conf.arg(
            help=f"What to measure, words between commas: methods ({', '.join(BENCHED)}), networks "
            "(resnet_9, resnet_6, unet_256, unet_128), discriminators (basic, n_layers, pixel), modes (eager, "
            "compiled, graph, streams, default; reference is measured with them), batch=N, size=N (pixels). Kinds that "
            "are not named stay as they are by default: resnet_9 by all methods, unet_256 by the first, basic, "
            "batch=1, size=256, the modes that suit this machine.",
            metavar="SPEC",
        ),
    ] = None
    all: Annotated[
        bool, tyro.conf.arg(help="Every method, network, discriminator and mode, batches 1 and 16; hours on a CPU.")
    ] = False
    waterfall: Annotated[
        bool,
        tyro.conf.arg(
            help="Instead of modes, what changes the reference into the default, one upon the other; "
            "benchmarks/waterfall.py draws it."
        ),
    ] = False
    paper: Annotated[
        bool,
        tyro.conf.arg(help="Instead of steps, the generators' forward pass beside Table 1 of La, Ellay and Rathbun."),
    ] = False
    rounds: Annotated[int, tyro.conf.arg(help="Timed rounds; methods and modes take turns in each.")] = 3
    json: Json = False

    def execute(self, argv: list[str]) -> Outcome:
        from rich.console import Console

        from velogan.measure.bench import bench, bench_paper, make_chain, make_plan, render
        from velogan.observe.progress import Display
        from velogan.training.resolve import resolve_device

        if self.rounds < 1:
            raise ValueError(f"--rounds {self.rounds}: at least one round is needed")
        if (self.paper and (self.only or self.all or self.waterfall)) or (self.all and self.waterfall):
            raise ValueError("--paper stands alone, and --waterfall takes no --all: leave the others out")
        device = resolve_device("auto")
        with Display() as display:
            if self.paper:
                result = bench_paper(rounds=self.rounds, say=display.say)
            else:
                make = make_chain if self.waterfall else partial(make_plan, everything=self.all)
                result = bench(make(self.only, device=device), rounds=self.rounds, say=display.say)
        console = Console(stderr=self.json)
        for part in render(result):
            console.print(part)
        return result, 0
