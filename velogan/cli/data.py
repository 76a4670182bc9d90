"""`velogan data render`, `velogan data download` and `velogan data check`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from velogan.cli.flags import Flags, Json, Outcome
from velogan.data.config import DataConfig, WindowName
from velogan.data.sets.download import NAMES
from velogan.files import counted


@dataclass(kw_only=True)
class DataRender(Flags):
    """Flags of `velogan data render`."""

    name: Annotated[tyro.conf.Positional[Literal["apples2oranges"]], tyro.conf.arg(help="The data set.")]
    directory: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR", help="The folder to write.")]
    count: Annotated[int, tyro.conf.arg(help="Training pictures in each domain.")] = 400
    test_count: Annotated[int, tyro.conf.arg(help="Test pictures in each domain.")] = 48
    image_size: Annotated[int, tyro.conf.arg(help="Side in pixels.")] = 256
    seed: Annotated[int, tyro.conf.arg(help="Seed of the pictures.")] = 0
    json: Json = False

    def places(self) -> list[tuple[str, Path]]:
        return [("DIR", self.directory)]

    def execute(self, argv: list[str]) -> Outcome:
        from velogan.data.rendered.apples2oranges import render_folder
        from velogan.observe.progress import Display

        least = {
            "--count": (self.count, 1),
            "--test-count": (self.test_count, 0),
            "--image-size": (self.image_size, 16),
        }
        for flag, (value, fewest) in least.items():
            if value < fewest:
                raise ValueError(f"{flag} {value}: give at least {fewest}")

        with Display() as display:
            folder = render_folder(
                self.directory,
                count=self.count,
                test_count=self.test_count,
                image_size=self.image_size,
                seed=self.seed,
                progress=display.task("rendering"),
            )
            display.say(f"{self.count} + {counted(self.test_count, 'picture')} in each domain: {folder}")
        return {"directory": str(folder), "train": self.count, "test": self.test_count}, 0


@dataclass(kw_only=True)
class DataDownload(Flags):
    """Flags of `velogan data download`.

    velogan data download horse2zebra horse2zebra
    """

    name: Annotated[tyro.conf.Positional[Literal[NAMES]], tyro.conf.arg(help="The data set.")]  # pyright: ignore[reportInvalidTypeForm]
    directory: Annotated[
        tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR", help="The folder to write, which must not exist.")
    ]
    json: Json = False

    def places(self) -> list[tuple[str, Path]]:
        return [("DIR", self.directory)]

    def execute(self, argv: list[str]) -> Outcome:
        from velogan.data.sets.download import HOST, download
        from velogan.observe.progress import Display

        with Display() as display:
            display.say(f"from {HOST}, its authors' host; see there who may use the pictures")
            count = download(self.name, self.directory, progress=display.task("downloading (MB)"))
            display.say(f"{counted(count, 'picture')}: {self.directory}; train on them with --data {self.directory}")
        return {"directory": str(self.directory), "pictures": count}, 0


@dataclass(kw_only=True)
class DataCheck(Flags):
    """Flags of `velogan data check`."""

    path: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="PATH [PATH]", help="The data set.")]
    window: Annotated[
        tuple[WindowName, ...] | None,
        tyro.conf.arg(help="DICOM and NIfTI: as --data.window of `train`.", metavar="NAME [NAME]"),
    ] = None
    pages: Annotated[
        Literal["channels", "slices"] | None,
        tyro.conf.arg(help="TIFF: as --data.pages of `train`.", metavar="channels|slices"),
    ] = None
    group: Annotated[str | None, tyro.conf.arg(help="As --data.group of `train`.", metavar="REGULAR-EXPRESSION")] = None
    json: Json = False

    def execute(self, argv: list[str]) -> Outcome:
        from velogan.data.sets.check import check, render_text
        from velogan.observe.progress import Display

        config = DataConfig(path=self.path, window=self.window, pages=self.pages, group=self.group)
        with Display() as display:
            found = check(config, progress=display.task("checking"))
        print(render_text(found), file=sys.stderr if self.json else sys.stdout)
        return found, 0
