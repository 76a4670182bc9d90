"""Run folders -> one HTML file that needs nothing but itself: no network, no other file."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from velogan.files import write_text
from velogan.report import sections
from velogan.report.architecture import architecture
from velogan.report.facts import Facts, curves, read_facts
from velogan.report.pictures import galleries


def write_report(runs: list[Path], out: Path | None = None) -> Path:
    """Write the page of one run, or of several side by side, and return its path.

    `out` is `report.html` in the run's folder, or for several runs `comparison.html` beside the first.
    Files of a run that are missing or damaged are left out. Raises `ValueError` for a folder without any file
    of a run, and for no folder at all.
    """
    if not runs:
        raise ValueError("no run to report on: give at least one run folder")
    folders = [Path(run) for run in runs]
    beside = folders[0].resolve().parent / "comparison.html"
    out = out or (folders[0] / "report.html" if len(runs) == 1 else beside)
    if out.suffix != ".html":
        raise ValueError(f"{out}: the page is HTML: name a file that ends in .html")
    page = render([read_facts(folder) for folder in folders])
    write_text(out, page)
    return out


def render(runs: list[Facts]) -> str:
    """The page as text."""
    return Template(own("page.html")).substitute(
        title=sections.text(sections.title(runs)),
        style=own("page.css"),
        script="\n".join(map(own, ("page.js", "pictures.js", "curves.js"))),
        data=in_script(_data(runs)),
        head=sections.head(runs),
        scores=sections.results(runs),
        architecture=architecture(runs),
        speed=sections.speed(runs),
        configuration=sections.configuration(runs),
    )


def in_script(value: Any) -> str:
    """JSON that can stand inside a script element, whatever strings it holds."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


def own(name: str) -> str:
    """A file of this room, as text."""
    return files("velogan.report").joinpath(name).read_text(encoding="utf-8")


def _data(runs: list[Facts]) -> dict[str, Any]:
    return {
        "runs": [{"name": facts.name, "curves": curves(facts.stats)} for facts in runs],
        "galleries": [entry | {"way": runs[entry["run"]].way(entry["direction"])} for entry in galleries(runs)],
    }
