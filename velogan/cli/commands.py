"""The list of commands with their summaries. The class of a command is imported when the command is used."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from velogan.cli.flags import Flags


@dataclass(frozen=True)
class Command:
    """A command: its one-line summary, and the path of its class in this package, such as `train:Train`."""

    summary: str
    class_path: str

    def load(self) -> type[Flags]:
        """Import and return the class, whose fields are the command's flags."""
        module, name = self.class_path.split(":")
        return getattr(import_module(f"velogan.cli.{module}"), name)

    def description(self) -> str:
        """Return the summary and the class's docstring from the second paragraph on: details and examples."""
        _, _, details = inspect.cleandoc(self.load().__doc__ or "").partition("\n\n")
        return f"{self.summary}\n\n{details}".rstrip()


COMMANDS: dict[tuple[str, ...], Command] = {
    ("train",): Command(
        "Train a translator between two folders of pictures; run the same command again to resume.", "train:Train"
    ),
    ("search",): Command(
        "Search for generator and discriminator architectures on two folders of pictures (docs/search.md).",
        "search:Search",
    ),
    ("translate",): Command(
        "Translate a picture or a folder of pictures with a trained run or a weights file.", "translate:Translate"
    ),
    ("evaluate",): Command(
        "Score a run on held-out pictures, compared with the unchanged input; or one folder against another.",
        "evaluate:Evaluate",
    ),
    ("import",): Command(
        "Make a run folder from networks that the reference implementation trained; options come from the weights.",
        "networks:Import",
    ),
    ("export",): Command(
        "Write generators in the formats of other programs, check them against PyTorch, and add a model card.",
        "networks:Export",
    ),
    ("serve",): Command(
        "Serve a trained run as a web page and an HTTP API that translates pictures (docs/serve.md).",
        "serve:Serve",
    ),
    ("demo",): Command("Turn apples into oranges in minutes: render, train, translate, score and report.", "demo:Demo"),
    ("profile",): Command(
        "Profile training steps: write where their time goes as a page, a JSON file and a trace.",
        "profile:Profile",
    ),
    ("report",): Command("Write the HTML report of one run, or a comparison of several.", "report:ReportPage"),
    ("sweep",): Command(
        "Train many runs that differ in the fields of --vary, scheduled by Ray Tune, and compare them on one page.",
        "sweep:Sweep",
    ),
    ("data", "render"): Command(
        "Render the built-in data set into a folder, with ground truth and masks of its test pictures.",
        "data:DataRender",
    ),
    ("data", "download"): Command(
        "Download a data set such as horse2zebra from the host of its authors into a folder.",
        "data:DataDownload",
    ),
    ("data", "check"): Command(
        "Check a data set before training: counts, sizes, unreadable files, duplicates.", "data:DataCheck"
    ),
}
