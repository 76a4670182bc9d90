"""`velogan bench`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from velogan.cli.flags import Flags, Json, Outcome
from velogan.recipes import BENCHED


@dataclass(kw_only=True)
class Bench(Flags):
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
        bool,
        tyro.conf.arg(
            help="Every method, network, discriminator and mode, batches 1 and 16: hours on a CPU, so give --minutes."
        ),
    ] = False
    minutes: Annotated[
        float,
        tyro.conf.arg(help="About the most that it takes: rounds are left out first, then the last modes and cases."),
    ] = 5
    rounds: Annotated[int, tyro.conf.arg(help="Timed rounds; methods and modes take turns in each.")] = 3
    json: Json = False

    def execute(self, argv: list[str]) -> Outcome:
        from rich.console import Console

        from velogan.engine.device import resolve_device
        from velogan.measure.bench.cases import make_plan
        from velogan.measure.bench.measure import bench
        from velogan.measure.bench.table import render
        from velogan.observe.progress import Display

        if self.rounds < 1:
            raise ValueError(f"--rounds {self.rounds}: at least one round is needed")
        if not self.minutes > 0:
            raise ValueError(f"--minutes {self.minutes:g}: give a number above 0")
        plan = make_plan(self.only, everything=self.all, device=resolve_device("auto"))
        with Display() as display:
            display.say(f"about {self.minutes:g} min at most (--minutes): what needs more is left out")
            result = bench(plan, rounds=self.rounds, seconds=60 * self.minutes, say=display.say)
        console = Console(stderr=self.json)
        for part in render(result):
            console.print(part)
        return result, 0
