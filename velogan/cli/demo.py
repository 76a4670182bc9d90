"""`velogan demo`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from velogan.cli.asked import Asked, Json, Outcome
from velogan.recipes import DEMOS

if TYPE_CHECKING:
    Preset = str
else:
    Preset = Literal[DEMOS]


@dataclass(kw_only=True)
class Demo(Asked):
    """Flags of `velogan demo`."""

    preset: Annotated[
        tyro.conf.Positional[Preset],
        tyro.conf.arg(help="The recipe; they differ in the method."),
    ] = DEMOS[0]
    minutes: Annotated[float | None, tyro.conf.arg(help="Training time.")] = None
    out: Annotated[Path, tyro.conf.arg(help="The run folder.")] = Path("runs/demo")
    json: Json = False

    def execute(self, argv: list[str]) -> Outcome:
        from velogan.demo import demo
        from velogan.observe.progress import Display

        with Display() as display:
            command = shlex.join(["velogan", *argv])
            return demo(self.out, preset=self.preset, minutes=self.minutes, display=display, command=command), 0
