"""Apples become oranges: the whole job on the built-in data set, in minutes, judged against the truth."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from velogan.data.domains.sources import Folder, find_sources
from velogan.deploy.model import load_translator
from velogan.deploy.translate import translate
from velogan.evaluation.evaluate import evaluate
from velogan.observe.progress import Display
from velogan.recipes import RECIPES
from velogan.report import write_report
from velogan.run import train


def demo(run: Path, *, preset: str, minutes: float | None, display: Display, command: str) -> dict[str, Any]:
    """Renders, trains for `minutes`, translates and scores held-out pictures, writes the page; returns the figures."""
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
