"""A finished sweep or study of searches as the table of a document: a row for each setting, on test pictures.

    velogan sweep benchmarks/plans/rendered.yaml --out runs/rendered
    python -m benchmarks.table runs/rendered psnr_object_db ssim_object squeeze_kid --squeezenet squeezenet1_0.npz

Each run is scored as `velogan evaluate` does it. A cell is the mean over seeds and, in brackets, the range. Sweeps
themselves score the chosen setting alone on test pictures: take this table for reporting, never for choosing.
Figures that the log has, such as `validation/psnr_object_db` on held-out pictures, are read there: the last of a run
and the best, by the largest.
`--checkpoint best` takes each run's best on held-out pictures in place of its last; `--sizes` adds what its generators
have: parameters from A to B and from B to A, in thousands, and how many times the first the second is.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.squeezenet import load_squeezenet
from velogan.config import read_config
from velogan.evaluation.evaluate import evaluate
from velogan.networks.sizes import network_size
from velogan.observe.log import read_stats
from velogan.observe.progress import Display
from velogan.types import domains_of

SIZES = ("a2b k", "b2a k", "asymmetry")
"""What `--sizes` adds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("figures", nargs="+")
    parser.add_argument("--direction", nargs="+", choices=["a2b", "b2a"], default=["a2b"])
    parser.add_argument("--checkpoint", choices=["last", "best"], default="last")
    parser.add_argument("--sizes", action="store_true")
    parser.add_argument("--features", choices=["none", "lite1", "lite2"], default="none")
    parser.add_argument("--squeezenet", type=Path)
    parser.add_argument("--classes", nargs="*", default=[], metavar="NAME=NUMBER")
    parser.add_argument("--limit", type=int)
    asked = parser.parse_args()
    classes = {name: int(number) for name, _, number in (word.partition("=") for word in asked.classes)}
    judges = [load_squeezenet(asked.squeezenet, "cpu")] if asked.squeezenet else []
    common = {"features": asked.features, "judges": judges, "classes": classes, "limit": asked.limit}
    runs: dict[str, list[dict[str, Any]]] = {}
    with Display() as display:
        for trial in _trials(asked.sweep):
            if trial["status"] == "done":
                run = Path(trial["run"])
                found: list[dict[str, Any]] = []
                if not all(map(_is_logged, asked.figures)):
                    found = evaluate(run, checkpoint=asked.checkpoint, task=display.task, **common)["scores"]
                row = {
                    "images": trial["images"],
                    **_sizes(run),
                    **_figures(found, asked),
                    **_logged(run, asked.figures),
                }
                runs.setdefault(trial["setting"], []).append(row)
    measured = [name for name in asked.figures if not _is_logged(name)]
    figures = [_named(name, way, asked) for way in asked.direction for name in measured]
    figures += [name for logged in filter(_is_logged, asked.figures) for name in (logged, f"{logged}, best")]
    print("\n".join(table(runs, [*(SIZES if asked.sizes else []), *figures])))


def _trials(folder: Path) -> list[dict[str, Any]]:
    """The trials of a sweep, or of a study, which calls settings recipes."""
    if (folder / "sweep.json").is_file():
        return json.loads((folder / "sweep.json").read_text())["trials"]
    rows = json.loads((folder / "sets.json").read_text())
    return [{**row, "setting": row["recipe"], "status": "failed" if row["reason"] else "done"} for row in rows]


def _sizes(run: Path) -> dict[str, float]:
    config = read_config(run)
    spec = config.spec
    found: dict[str, float] = {}
    for way in config.method.directions:
        source, target = (spec.channels[letter] for letter in domains_of(way))
        found[f"{way} k"] = (
            network_size(spec.generators[way], in_channels=source, out_channels=target).parameters / 1000
        )
    if len(found) > 1:
        found[SIZES[-1]] = found["b2a k"] / found["a2b k"]
    return found


def _figures(scores: Sequence[dict[str, Any]], asked: argparse.Namespace) -> dict[str, float]:
    return {
        _named(one["name"], one["direction"], asked): one["value"]
        for one in scores
        if one["direction"] in asked.direction and one["weights"] == "ema" and one["value"] is not None
    }


def _is_logged(figure: str) -> bool:
    return figure.startswith("validation/")


def _logged(run: Path, figures: Sequence[str]) -> dict[str, float]:
    """The last and the largest of each figure in the log of `run`."""
    found: dict[str, float] = {}
    for name in filter(_is_logged, figures):
        if values := [row[name] for row in read_stats(run) if name in row]:
            found |= {name: values[-1], f"{name}, best": max(values)}
    return found


def _named(name: str, way: str, asked: argparse.Namespace) -> str:
    return f"{name} {way}" if len(asked.direction) > 1 else name


def table(runs: dict[str, list[dict[str, Any]]], figures: Sequence[str]) -> list[str]:
    """Lines of Markdown: by setting, the mean of images, and mean and range of each figure."""
    lines = [f"| | images | {' | '.join(figures)} |", "|---|---" + "|---" * len(figures) + "|"]
    for setting, seeds in runs.items():
        cells = [f"{fmean(one['images'] for one in seeds):,.0f}"]
        cells += [_cell([one[name] for one in seeds if name in one]) for name in figures]
        lines.append(f"| `{setting}` | {' | '.join(cells)} |")
    return lines


def _cell(values: Sequence[float]) -> str:
    return f"{fmean(values):.3g} ({min(values):.3g} to {max(values):.3g})" if values else ""


if __name__ == "__main__":
    main()
