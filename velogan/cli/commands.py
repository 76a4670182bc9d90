"""The commands, with the line that says what each is for. What one takes and does is imported when it is asked for."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from velogan.cli.flags import Flags


@dataclass(frozen=True)
class Command:
    """A command: what it is for in a line, and where its class is, as `module:name` beside this file."""

    summary: str
    place: str

    def load(self) -> type[Flags]:
        """Its class, whose fields are its flags."""
        module, name = self.place.split(":")
        return getattr(import_module(f"velogan.cli.{module}"), name)

    def description(self) -> str:
        """The summary and what the class's docstring says below its first paragraph: details and examples."""
        _, _, details = inspect.cleandoc(self.load().__doc__ or "").partition("\n\n")
        return f"{self.summary}\n\n{details}".rstrip()


COMMANDS: dict[tuple[str, ...], Command] = {
    ("train",): Command(
        "Train a translator between two folders of images, or continue a run: the same command again.", "train:Train"
    ),
    ("search",): Command(
        "Find architectures for the generators and discriminators of two folders of images (docs/search.md).",
        "search:Search",
    ),
    ("translate",): Command(
        "Translate one image or a folder of images with a trained run or a weights file.", "translate:Translate"
    ),
    ("evaluate",): Command(
        "Score a run on held-out pictures, every figure beside that of doing nothing; or one folder against another.",
        "evaluate:Evaluate",
    ),
    ("import",): Command(
        "Make a run folder of networks that the reference implementation trained, recognised from their weights alone.",
        "networks:Import",
    ),
    ("export",): Command(
        "Write generators for other programs, check them against PyTorch, and lay a card beside them.",
        "networks:Export",
    ),
    ("serve",): Command(
        "Serve a trained run as a page and a small API: pictures in, translated pictures out (docs/serve.md).",
        "serve:Serve",
    ),
    ("demo",): Command(
        "Watch apples become oranges: render, train, translate, score and report, in minutes.", "demo:Demo"
    ),
    ("profile",): Command(
        "Where the time of a training step goes: a page, a JSON and a trace, from steps under the profiler.",
        "profile:Profile",
    ),
    ("report",): Command("Write the page of one run, or a comparison of several.", "report:ReportPage"),
    ("sweep",): Command(
        "Train many runs that differ in what --vary names, scheduled by Ray Tune, and compare them on one page.",
        "sweep:Sweep",
    ),
    ("data", "render"): Command(
        "Render the built-in data set into a folder, with truth and masks for its test pictures.", "data:DataRender"
    ),
    ("data", "download"): Command(
        "Download a data set such as horse2zebra from the host of its authors into a folder.",
        "data:DataDownload",
    ),
    ("data", "check"): Command(
        "Look through a data set before training: counts, sizes, unreadable files, duplicates.", "data:DataCheck"
    ),
}
