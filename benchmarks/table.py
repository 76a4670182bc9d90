"""A finished sweep or study of searches as a Markdown table: a row per setting, on test pictures.

    velogan sweep benchmarks/plans/rendered.yaml --out runs/rendered
    python -m benchmarks.table runs/rendered psnr_object_db ssim_object squeeze_kid --squeezenet squeezenet1_0.npz

Each run is scored as by `velogan evaluate`. A cell is the mean over seeds and, in brackets, the range. Sweeps score
only the chosen setting on test pictures: use this table for reporting, never for choosing. Metrics of the log, such as
`validation/psnr_object_db` on held-out pictures, are read from it: the last and the largest of a run.
`--checkpoint best` scores the best checkpoints on held-out pictures instead of the last; `--sizes` adds the parameters
of the generators, in thousands, and their ratio.
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
"""Columns that `--sizes` adds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("metrics", nargs="+")
    parser.add_argument("--direction", nargs="+", choices=["a2b", "b2a"], default=["a2b"])
    parser.add_argument("--checkpoint", choices=["last", "best"], default="last")
    parser.add_argument("--sizes", action="store_true")
    parser.add_argument("--features", choices=["none", "lite1", "lite2"], default="none")
    parser.add_argument("--squeezenet", type=Path)
    parser.add_argument("--classes", nargs="*", default=[], metavar="NAME=NUMBER")
    parser.add_argument("--limit", type=int)
    args = parser.parse_args()
    classes = {name: int(number) for name, _, number in (word.partition("=") for word in args.classes)}
    judges = [load_squeezenet(args.squeezenet, "cpu")] if args.squeezenet else []
    common = {"features": args.features, "judges": judges, "classes": classes, "limit": args.limit}
    runs: dict[str, list[dict[str, Any]]] = {}
    with Display() as display:
        for trial in _trials(args.sweep):
            if trial["status"] == "done":
                run = Path(trial["run"])
                scores: list[dict[str, Any]] = []
                if not all(map(_is_logged, args.metrics)):
                    scores = evaluate(run, checkpoint=args.checkpoint, task=display.task, **common)["scores"]
                row = {
                    "images": trial["images"],
                    **_sizes(run),
                    **_values(scores, args),
                    **_logged(run, args.metrics),
                }
                runs.setdefault(trial["setting"], []).append(row)
    measured = [name for name in args.metrics if not _is_logged(name)]
    columns = [_column(name, direction, args) for direction in args.direction for name in measured]
    columns += [name for logged in filter(_is_logged, args.metrics) for name in (logged, f"{logged}, best")]
    print("\n".join(table(runs, [*(SIZES if args.sizes else []), *columns])))


def _trials(folder: Path) -> list[dict[str, Any]]:
    """Return the trials of a sweep, or of a study, which calls settings recipes."""
    if (folder / "sweep.json").is_file():
        return json.loads((folder / "sweep.json").read_text())["trials"]
    rows = json.loads((folder / "sets.json").read_text())
    return [{**row, "setting": row["recipe"], "status": "failed" if row["reason"] else "done"} for row in rows]


def _sizes(run: Path) -> dict[str, float]:
    config = read_config(run)
    spec = config.spec
    sizes: dict[str, float] = {}
    for direction in config.method.directions:
        source, target = (spec.channels[letter] for letter in domains_of(direction))
        size = network_size(spec.generators[direction], in_channels=source, out_channels=target)
        sizes[f"{direction} k"] = size.parameters / 1000
    if len(sizes) > 1:
        sizes[SIZES[-1]] = sizes["b2a k"] / sizes["a2b k"]
    return sizes


def _values(scores: Sequence[dict[str, Any]], args: argparse.Namespace) -> dict[str, float]:
    return {
        _column(score["name"], score["direction"], args): score["value"]
        for score in scores
        if score["direction"] in args.direction and score["weights"] == "ema" and score["value"] is not None
    }


def _is_logged(metric: str) -> bool:
    return metric.startswith("validation/")


def _logged(run: Path, metrics: Sequence[str]) -> dict[str, float]:
    """Return the last and the largest value of each metric in the log of `run`."""
    logged: dict[str, float] = {}
    for name in filter(_is_logged, metrics):
        if values := [row[name] for row in read_stats(run) if name in row]:
            logged |= {name: values[-1], f"{name}, best": max(values)}
    return logged


def _column(name: str, direction: str, args: argparse.Namespace) -> str:
    return f"{name} {direction}" if len(args.direction) > 1 else name


def table(runs: dict[str, list[dict[str, Any]]], columns: Sequence[str]) -> list[str]:
    """Return lines of Markdown: by setting, the mean number of images, and mean and range of each column."""
    lines = [f"| | images | {' | '.join(columns)} |", "|---|---" + "|---" * len(columns) + "|"]
    for setting, rows in runs.items():
        cells = [f"{fmean(row['images'] for row in rows):,.0f}"]
        cells += [_cell([row[name] for row in rows if name in row]) for name in columns]
        lines.append(f"| `{setting}` | {' | '.join(cells)} |")
    return lines


def _cell(values: Sequence[float]) -> str:
    return f"{fmean(values):.3g} ({min(values):.3g} to {max(values):.3g})" if values else ""


if __name__ == "__main__":
    main()
