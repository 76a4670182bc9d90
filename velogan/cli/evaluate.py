"""`velogan evaluate`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from velogan.cli.flags import FP32, Flags, Json, Outcome
from velogan.files import check_writable


@dataclass(kw_only=True)
class Evaluate(Flags):
    """Flags of `velogan evaluate`.

    velogan evaluate runs/zebras --classes zebra=340

    velogan evaluate runs/zebras --data horses zebras

    velogan evaluate translated --against zebras
    """

    run: Annotated[
        tyro.conf.Positional[Path],
        tyro.conf.arg(metavar="RUN|DIR", help="A run folder; with --against, a folder of pictures."),
    ]
    against: Annotated[
        Path | None, tyro.conf.arg(help="Compare two folders of pictures; no run is needed.", metavar="DIR")
    ] = None
    data: Annotated[
        tuple[str, ...],
        tyro.conf.arg(
            help="Judge on this data instead of the run's own: a folder with testA and testB, or two folders of test "
            "pictures.",
            metavar="PATH [PATH]",
        ),
    ] = ()
    features: Annotated[
        Literal["none", "lite1", "lite2"] | None,
        tyro.conf.arg(
            help="The EfficientNet-Lite whose features give FID, KID and class shares. Default: lite2.",
            metavar="none|lite1|lite2",
        ),
    ] = None
    inception: Annotated[
        str | None,
        tyro.conf.arg(
            help="Weights (.pth) of the Inception network that published FID uses, for FID and KID; auto downloads "
            "them once to the cache.",
            metavar="FILE|auto",
        ),
    ] = None
    classes: Annotated[
        tuple[str, ...],
        tyro.conf.arg(
            help="ImageNet classes; the share of pictures that a network takes for each is measured: zebra=340.",
            metavar="NAME=NUMBER ...",
        ),
    ] = ()
    checkpoint: Annotated[
        Literal["last", "best"] | None,
        tyro.conf.arg(help="Score this checkpoint alone. Default: both.", metavar="last|best"),
    ] = None
    limit: Annotated[
        int | None, tyro.conf.arg(help="Score at most so many test pictures of each domain.", metavar="NUMBER")
    ] = None
    fp32: Annotated[bool, tyro.conf.arg(help=FP32)] = False
    device: Annotated[str, tyro.conf.arg(name="engine.device", help="Where to compute: auto, cpu, cuda or mps.")] = (
        "auto"
    )
    json: Json = False

    def execute(self, argv: list[str]) -> Outcome:
        from rich.console import Console

        from velogan.data.sets.sources import left_out
        from velogan.engine.device import resolve_device
        from velogan.evaluation.compare import compare
        from velogan.evaluation.evaluate import evaluate
        from velogan.evaluation.features import MISSING_JUDGE, default_features
        from velogan.evaluation.table import domains, duplicates_line, render_table
        from velogan.observe.progress import Display, printable
        from velogan.report import write_report
        from velogan.report.verdict import verdict

        inception = Path(self.inception) if self.inception not in (None, "auto") else self.inception
        classes = dict(_class(text) for text in self.classes)
        features = self.features or default_features()
        common: Any = {"inception": inception, "classes": classes or None}
        common |= {"features": features, "device": resolve_device(self.device)}
        if self.against is not None and (self.data or self.checkpoint is not None or self.fp32):
            raise ValueError("--against compares two folders of pictures: leave --data, --checkpoint and --fp32 out")
        if len(self.data) > 2:
            raise ValueError(f"--data {' '.join(self.data)}: name one folder, or two")
        with Display() as display:
            common |= {"limit": self.limit, "task": display.task}
            if self.against is not None:
                result = compare(self.run, self.against, **common)
            else:
                try:
                    check_writable("RUN", self.run)
                except ValueError as error:
                    display.say(f"careful: figures are printed alone, since {error}")
                chosen = {"data": self.data, "checkpoint": self.checkpoint, "fp32": self.fp32}
                result = evaluate(self.run, **chosen, **common)
            compared = [self.run, self.against] if self.against else scored(result["protocol"]["data"])
            missing = MISSING_JUDGE if self.features is None and features == "none" else None
            lines = [*(left_out(folder, scans=False) for folder in compared), duplicates_line(result), missing]
            for line in filter(None, lines):
                display.say(line)
        console = Console(stderr=self.json)
        protocol = result["protocol"]
        warning = [f"careful: {protocol['judge']}"] if protocol.get("judge") else []
        for line in [*verdict(result["scores"], domains(protocol)), *warning]:
            console.print(printable(line), markup=False, highlight=False)
        console.print(render_table(result))
        if self.against is None and not result.get("unwritten"):
            try:
                write_report([self.run])
            except OSError as error:
                result["unwritten"] = str(error)
        if unwritten := result.get("unwritten"):
            print(f"velogan: {printable(unwritten)}", file=sys.stderr)
        return result, 1 if unwritten else 0


def _class(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not name or not number.isdigit():
        raise ValueError(f"--classes {text}: write NAME=NUMBER with the ImageNet class, for example zebra=340")
    return name, int(number)


def scored(data: Mapping[str, Any]) -> list[Path]:
    """The folders of the pictures that a protocol's `data` names."""
    folders = [Path(one).expanduser() for one in data["path"]]
    if len(folders) > 1:
        return folders
    return [folders[0] / f"{'test' if data[letter]['split'] == 'test' else 'train'}{letter.upper()}" for letter in "ab"]
