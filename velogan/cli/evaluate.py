"""`velogan evaluate`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from velogan.cli.flags import DEVICE, FP32, Flags, Json, Outcome
from velogan.files import check_writable

NO_VERDICT = (
    "No verdict: no score differs from that of the unchanged input by more than its interval. Score more images."
)


@dataclass(kw_only=True)
class Evaluate(Flags):
    """Flags of `velogan evaluate`.

    velogan evaluate runs/zebras --classes zebra=340
    velogan evaluate runs/zebras --data horses zebras
    velogan evaluate translated --against zebras
    """

    run: Annotated[Positional[Path], arg(metavar="RUN|DIR", help="A run folder; with --against, a folder of pictures.")]
    against: Annotated[
        Path | None, arg(help="Compare the pictures of the first folder with those of this folder.", metavar="DIR")
    ] = None
    data: Annotated[
        tuple[str, ...],
        arg(
            help="Score on these pictures instead of the run's own: a folder with testA and testB, or two folders of "
            "test pictures.",
            metavar="PATH [PATH]",
        ),
    ] = ()
    features: Annotated[
        Literal["none", "lite1", "lite2"] | None,
        arg(help="EfficientNet-Lite variant for FID, KID and class fractions. Default: lite2 if installed, else none."),
    ] = None
    inception: Annotated[
        str | None,
        arg(
            help="Compute FID and KID with the Inception network of published FID, from this .pth file; auto downloads "
            "the file once to the cache.",
            metavar="FILE|auto",
        ),
    ] = None
    classes: Annotated[
        tuple[str, ...],
        arg(
            help="ImageNet classes, such as zebra=340: report the fraction of images classified as each.",
            metavar="NAME=NUMBER ...",
        ),
    ] = ()
    checkpoint: Annotated[Literal["last", "best"] | None, arg(help="Score only this checkpoint. Default: both.")] = None
    limit: Annotated[int | None, arg(help="Maximum number of test pictures per domain. Default: all.")] = None
    fp32: Annotated[bool, arg(help=FP32)] = False
    device: Annotated[str, DEVICE] = "auto"
    json: Json = False

    def execute(self, argv: list[str]) -> Outcome:
        from rich.console import Console

        from velogan.data.sets.sources import describe_skipped_files
        from velogan.engine.device import resolve_device
        from velogan.evaluation.compare import compare
        from velogan.evaluation.evaluate import evaluate
        from velogan.evaluation.features import MISSING_JUDGE, default_features
        from velogan.evaluation.table import domain_names, duplicates_warning, render_table
        from velogan.observe.progress import Display, printable
        from velogan.report import write_report
        from velogan.report.verdict import summarize_scores

        inception = Path(self.inception) if self.inception not in (None, "auto") else self.inception
        classes = dict(_parse_class(text) for text in self.classes)
        features = self.features or default_features()
        common: Any = {"inception": inception, "classes": classes or None}
        common |= {"features": features, "device": resolve_device(self.device)}
        if self.against is not None and (self.data or self.checkpoint is not None or self.fp32):
            raise ValueError("--against compares two folders of pictures: remove --data, --checkpoint and --fp32")
        if len(self.data) > 2:
            raise ValueError(f"--data {' '.join(self.data)}: give one folder or two")
        with Display() as display:
            common |= {"limit": self.limit, "task": display.task}
            if self.against is not None:
                result = compare(self.run, self.against, **common)
            else:
                try:
                    check_writable("RUN", self.run)
                except ValueError as error:
                    display.print_line(f"warning: scores are printed but not saved, because {error}")
                options = {"data": self.data, "checkpoint": self.checkpoint, "fp32": self.fp32}
                result = evaluate(self.run, **options, **common)
            folders = [self.run, self.against] if self.against else scored_folders(result["protocol"]["data"])
            missing_judge = MISSING_JUDGE if self.features is None and features == "none" else None
            lines = [
                *(describe_skipped_files(folder, no_scans=False) for folder in folders),
                duplicates_warning(result),
                result.get("unsaved"),
                missing_judge,
            ]
            for line in filter(None, lines):
                display.print_line(line)
        console = Console(stderr=self.json)
        protocol = result["protocol"]
        warning = [f"warning: {protocol['judge']}"] if protocol.get("judge") else []
        lines = summarize_scores(result["scores"], domain_names(protocol)) or ([] if self.against else [NO_VERDICT])
        for line in [*lines, *warning]:
            console.print(printable(line), markup=False, highlight=False)
        console.print(render_table(result))
        if self.against is None and not {"unsaved", "unwritten"} & result.keys():
            try:
                write_report([self.run])
            except OSError as error:
                result["unwritten"] = str(error)
        if unwritten := result.get("unwritten"):
            print(f"velogan: {printable(unwritten)}", file=sys.stderr)
        return result, 1 if unwritten else 0


def _parse_class(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not name or not number.isdigit():
        raise ValueError(f"--classes {text}: write NAME=NUMBER with the ImageNet class, for example zebra=340")
    return name, int(number)


def scored_folders(data: Mapping[str, Any]) -> list[Path]:
    """Return the folders of the pictures that were scored. `data`: the entry `data` of a protocol."""
    folders = [Path(path).expanduser() for path in data["path"]]
    if len(folders) > 1:
        return folders
    return [folders[0] / f"{'test' if data[letter]['split'] == 'test' else 'train'}{letter.upper()}" for letter in "ab"]
