"""`velogan data render`, `velogan data download` and `velogan data check`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from velogan.cli.flags import Flags, Json, Outcome
from velogan.data.config import DataConfig, WindowName
from velogan.data.sets.download import NAMES
from velogan.files import pluralize


@dataclass(kw_only=True)
class DataRender(Flags):
    """Flags of `velogan data render`."""

    name: Annotated[Positional[Literal["apples2oranges"]], arg(help="The data set.")]
    directory: Annotated[Positional[Path], arg(metavar="DIR", help="The folder to write.")]
    count: Annotated[int, arg(help="Number of training pictures per domain.")] = 400
    test_count: Annotated[int, arg(help="Number of test pictures per domain.")] = 48
    image_size: Annotated[int, arg(help="Height and width of each picture in pixels.")] = 256
    seed: Annotated[int, arg(help="Random seed; another seed renders other pictures.")] = 0
    json: Json = False

    def output_paths(self) -> list[tuple[str, Path]]:
        return [("DIR", self.directory)]

    def execute(self, argv: list[str]) -> Outcome:
        from velogan.data.rendered.apples2oranges import render_folder
        from velogan.observe.progress import Display

        values = {
            "--count": (self.count, 1),
            "--test-count": (self.test_count, 0),
            "--image-size": (self.image_size, 16),
        }
        for flag, (value, minimum) in values.items():
            if value < minimum:
                raise ValueError(f"{flag} {value}: give at least {minimum}")

        with Display() as display:
            folder = render_folder(
                self.directory,
                count=self.count,
                test_count=self.test_count,
                image_size=self.image_size,
                seed=self.seed,
                progress=display.task("rendering"),
            )
            display.print_line(f"{self.count} + {pluralize(self.test_count, 'picture')} in each domain: {folder}")
        return {"directory": str(folder), "train": self.count, "test": self.test_count}, 0


@dataclass(kw_only=True)
class DataDownload(Flags):
    """Flags of `velogan data download`.

    velogan data download horse2zebra horse2zebra
    """

    name: Annotated[Positional[Literal[NAMES]], arg(help="The data set.")]  # pyright: ignore[reportInvalidTypeForm]
    directory: Annotated[Positional[Path], arg(metavar="DIR", help="The folder to write; it must not exist.")]
    json: Json = False

    def output_paths(self) -> list[tuple[str, Path]]:
        return [("DIR", self.directory)]

    def execute(self, argv: list[str]) -> Outcome:
        from velogan.data.sets.download import HOST, download
        from velogan.observe.progress import Display

        with Display() as display:
            display.print_line(f"downloading from {HOST}, the host of its authors; see there for the terms of use")
            count = download(self.name, self.directory, progress=display.task("downloading (MB)"))
            display.print_line(
                f"{pluralize(count, 'picture')}: {self.directory}; train on them with --data {self.directory}"
            )
        return {"directory": str(self.directory), "pictures": count}, 0


@dataclass(kw_only=True)
class DataCheck(Flags):
    """Flags of `velogan data check`."""

    path: Annotated[
        Positional[tuple[str, ...]], arg(metavar="PATH [PATH]", help="A folder with trainA and trainB, or two folders.")
    ]
    window: Annotated[
        tuple[WindowName, ...] | None,
        arg(help="For DICOM and NIfTI: same as --data.window of `train`.", metavar="NAME [NAME]"),
    ] = None
    pages: Annotated[Literal["channels", "slices"] | None, arg(help="For TIFF: same as --data.pages of `train`.")] = (
        None
    )
    group: Annotated[str | None, arg(help="Same as --data.group of `train`.", metavar="REGULAR-EXPRESSION")] = None
    json: Json = False

    def execute(self, argv: list[str]) -> Outcome:
        from velogan.data.sets.check import check, render_text
        from velogan.observe.progress import Display

        config = DataConfig(path=self.path, window=self.window, pages=self.pages, group=self.group)
        with Display() as display:
            result = check(config, progress=display.task("checking"))
        print(render_text(result), file=sys.stderr if self.json else sys.stdout)
        return result, 0
