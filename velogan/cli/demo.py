"""`velogan demo`: apples become oranges; the whole job on the built-in set, in minutes, judged against the truth."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from velogan.cli.asked import Asked, Json, Outcome
from velogan.recipes import DEMOS, RECIPES

if TYPE_CHECKING:
    from velogan.observe.progress import Display

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
        from velogan.observe.progress import Display

        with Display() as display:
            command = shlex.join(["velogan", *argv])
            return _demo(self.out, preset=self.preset, minutes=self.minutes, display=display, command=command), 0


def _demo(run: Path, *, preset: str, minutes: float | None, display: Display, command: str) -> dict[str, Any]:
    """Renders, trains for `minutes`, translates and scores held-out pictures, writes the page; returns the figures."""
    from velogan.data.sets.sources import Folder, find_sources
    from velogan.evaluation.evaluate import evaluate
    from velogan.report import write_report
    from velogan.training.run import train
    from velogan.translate.files import translate
    from velogan.translate.model import load_translator

    begun = time.monotonic()
    config = RECIPES[preset]()
    if minutes is not None:
        config = config.change(train={"length": f"{minutes} minutes"})
    train(config, run, display=display, origin={"preset": preset, "command": command})
    held_out = find_sources(config.data).a.test
    assert isinstance(held_out, Folder)  # the built-in set has one
    translate(load_translator(run), held_out.directory, run / "translated", overwrite=True)
    scores = {
        score["name"]: score
        for score in evaluate(run, checkpoint="last", task=display.task)["scores"]
        if score["direction"] == "a2b" and score["weights"] == "ema"
    }
    page = write_report([run])
    result = {
        "run": str(run),
        "report": str(page),
        "seconds": round(time.monotonic() - begun, 1),
        "psnr_object_db": scores["psnr_object_db"]["value"],
        "psnr_object_input_db": scores["psnr_object_db"]["baseline"],
        "psnr_background_db": scores["psnr_background_db"]["value"],
    }
    gain = result["psnr_object_db"] - result["psnr_object_input_db"]
    display.say(
        f"apples to oranges in {result['seconds']:.0f} s: object {result['psnr_object_db']:.1f} dB to the truth, "
        f"{gain:+.1f} dB over doing nothing; background kept at {result['psnr_background_db']:.1f} dB"
    )
    display.say(f"look at it: {page.resolve()}")
    return result
