"""`velogan report`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from velogan.cli.flags import Flags, Json, Outcome, folder_of


@dataclass(kw_only=True)
class ReportPage(Flags):
    """Flags of `velogan report`."""

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN [RUN ...]", help="Run folders.")]
    out: Annotated[Path | None, tyro.conf.arg(help="The page; RUN/report.html for one run.")] = None
    json: Json = False

    def places(self) -> list[tuple[str, Path]]:
        return [("--out", folder_of(self.out)) if self.out else ("RUN", self.runs[0])] if self.runs else []

    def execute(self, argv: list[str]) -> Outcome:
        from velogan.report import write_report

        page = write_report(list(self.runs), out=self.out)
        print(page, file=sys.stderr if self.json else sys.stdout)
        return {"page": str(page)}, 0
