"""Write the report of runs as one self-contained HTML file: it needs no network and no other file."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from velogan.files import write_text
from velogan.report import sections
from velogan.report.architecture import build_architecture
from velogan.report.pictures import build_galleries
from velogan.report.run_data import RunData, mean_curves, read_run_data


def write_report(runs: list[Path], out: Path | None = None) -> Path:
    """Write the report of one run, or the comparison of several, and return its path.

    `out` defaults to `report.html` in the run's folder, or, for several runs, to `comparison.html` next to the first.
    Missing or damaged files of a run are skipped. Raises ValueError if `runs` is empty, if a folder has no file of a
    run, or if `out` does not end in .html.
    """
    if not runs:
        raise ValueError("no run to report on: name at least one run folder")
    folders = [Path(run) for run in runs]
    comparison = folders[0].resolve().parent / "comparison.html"
    out = out or (folders[0] / "report.html" if len(runs) == 1 else comparison)
    if out.suffix != ".html":
        raise ValueError(f"{out}: the report is an HTML page; name a file that ends in .html")
    page = render([read_run_data(folder) for folder in folders])
    write_text(out, page)
    return out


def render(runs: list[RunData]) -> str:
    """Return the report of `runs` as HTML."""
    return Template(read_asset("page.html")).substitute(
        title=sections.text(sections.make_title(runs)),
        style=read_asset("page.css"),
        script="\n".join(map(read_asset, ("page.js", "pictures.js", "curves.js"))),
        data=to_script_json(_data(runs)),
        head=sections.build_head(runs),
        scores=sections.build_scores(runs),
        architecture=build_architecture(runs),
        speed=sections.build_speed(runs),
        configuration=sections.build_configuration(runs),
    )


def to_script_json(value: Any) -> str:
    """Return `value` as JSON that is safe inside a script element, whatever strings it holds."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


def read_asset(name: str) -> str:
    """Return the text of an asset of this package: HTML, CSS or JavaScript."""
    return files("velogan.report").joinpath(name).read_text(encoding="utf-8")


def _data(runs: list[RunData]) -> dict[str, Any]:
    return {
        "runs": [{"name": run.name, "curves": mean_curves(run.stats)} for run in runs],
        "galleries": [
            entry | {"domains": runs[entry["run"]].domain_names(entry["direction"])} for entry in build_galleries(runs)
        ],
    }
