"""`velogan demo`: render the built-in data set, train on it, translate and score its test pictures, in minutes."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from velogan.cli.flags import Flags, Json, Outcome
from velogan.files import pluralize
from velogan.recipes import DEMOS, RECIPES

if TYPE_CHECKING:
    from velogan.config import Config
    from velogan.engine.trainer import Trainer
    from velogan.observe.progress import Display

    Preset = str
else:
    Preset = Literal[DEMOS]


@dataclass(kw_only=True)
class Demo(Flags):
    """Flags of `velogan demo`."""

    preset: Annotated[Positional[Preset], arg(help="Preset to train; the presets differ in the method.")] = DEMOS[0]
    minutes: Annotated[
        float, arg(help="Maximum training time in minutes; a slow machine stops before the preset's 3,000 images.")
    ] = 10
    out: Annotated[Path, arg(help="Run folder to write or to resume.")] = Path("runs/demo")
    json: Json = False

    def output_paths(self) -> list[tuple[str, Path]]:
        return [("--out", self.out)]

    def execute(self, argv: list[str]) -> Outcome:
        from velogan.observe.progress import Display

        if not self.minutes > 0:
            raise ValueError(f"--minutes {self.minutes:g}: give a number above 0")
        with Display() as display:
            command = shlex.join(["velogan", *argv])
            return _demo(self.out, preset=self.preset, minutes=self.minutes, display=display, command=command), 0


def _demo(run: Path, *, preset: str, minutes: float, display: Display, command: str) -> dict[str, Any]:
    """Train in the folder `run`, translate and score test pictures, write the report; return the result for --json.

    Training ends after the preset's images or after `minutes`, whichever comes first.
    """
    from velogan.data.sets.sources import Folder, find_sources
    from velogan.evaluation.evaluate import evaluate
    from velogan.report import write_report
    from velogan.training.run import train
    from velogan.translate.files import translate
    from velogan.translate.model import load_translator
    from velogan.translate.options import TranslateOptions

    started_at = time.monotonic()
    config = RECIPES[preset]()
    training_context, origin = partial(_stop_after, 60 * minutes), {"preset": preset, "command": command}
    display.print_line(f"training ends after {config.train.length} or {minutes:g} min, whichever comes first")
    trained = train(config, run, display=display, origin=origin, training_context=training_context)
    test_images = find_sources(config.data).a.test
    assert isinstance(test_images, Folder)  # the built-in set has test images
    translate(load_translator(run), test_images.directory, run / "translated", TranslateOptions(overwrite=True))
    scores = {
        score["name"]: score
        for score in evaluate(run, checkpoint="last", task=display.task)["scores"]
        if score["direction"] == "a2b" and score["weights"] == "ema"
    }
    page = write_report([run])
    result = {
        "run": str(run),
        "report": str(page),
        "seconds": round(time.monotonic() - started_at, 1),
        "images_seen": trained.images_seen,
        "finished": trained.finished,
        "psnr_object_db": scores["psnr_object_db"]["value"],
        "psnr_object_input_db": scores["psnr_object_db"]["baseline"],
        "psnr_background_db": scores["psnr_background_db"]["value"],
    }
    gain = result["psnr_object_db"] - result["psnr_object_input_db"]
    display.print_line(
        f"trained on {pluralize(trained.images_seen, 'image')}; {result['seconds']:.0f} s in all; PSNR of the object: "
        f"{result['psnr_object_db']:.1f} dB ({gain:+.1f} dB over the unchanged input), of the background: "
        f"{result['psnr_background_db']:.1f} dB"
    )
    if not trained.finished:
        display.print_line(
            f"training was stopped after {minutes:g} min, before {config.train.length}: run the same command again to "
            "resume it and improve the result"
        )
    display.print_line(f"report: {page.resolve()}")
    return result


@contextmanager
def _stop_after(seconds: float, config: Config, trainer: Trainer, *_: object) -> Iterator[None]:
    """Stop training in this context after `seconds`, like Ctrl-C: the run is saved and can be resumed."""
    timer = threading.Timer(seconds, setattr, (trainer, "stop_requested", True))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
