"""`velogan report`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from velogan.cli.flags import Flags, Json, Outcome, output_folder


@dataclass(kw_only=True)
class ReportPage(Flags):
    """Flags of `velogan report`."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN [RUN ...]", help="Run folders.")]
    out: Annotated[Path | None, arg(help="HTML file to write. Default for one run: RUN/report.html.")] = None
    json: Json = False

    def output_paths(self) -> list[tuple[str, Path]]:
        runs = [("RUN", run) for run in self.runs[:1] if run.is_dir()]
        return [("--out", output_folder(self.out))] if self.out else runs

    def execute(self, argv: list[str]) -> Outcome:
        from velogan.report import write_report

        page = write_report(list(self.runs), out=self.out)
        print(page, file=sys.stderr if self.json else sys.stdout)
        return {"page": str(page)}, 0
