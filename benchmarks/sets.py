"""Recipes over many sets: trained, scored on test pictures, and laid side by side on one page, by one command.

    python -m benchmarks.sets --sets ../shared/data --out runs/sets --minutes 10

Each folder below `--sets` that has trainA and trainB is a set, and the built-in apples2oranges is one; `--only` names
some. The plan file (benchmarks/plans/sets.yaml) names recipes and what they have in common; flags change sizes, lengths
and seeds. The same command goes on where it was stopped. OUT/sets.html has a drawing of what is closed (OUT/sets.svg),
the same six held-out pictures of each set by each recipe, all tables and all runs; OUT/sets.json has every figure.
Scored is the checkpoint that `translate` takes, or with `--last` the last. Variants of a plan are recipes, too.

Closed is the share of the kernel distance between inputs and real pictures that a translation closes, over a network
that no discriminator uses. Where a set has `maskA` or `maskB`, what changed outside the objects is measured on held-out
training pictures. The table is for reporting: whoever chooses by it needs other pictures for the next report.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from string import Template
from typing import Any

from benchmarks.gpu_item import CLASSES, SCORING_S, closed_fraction
from benchmarks.outside import outside
from benchmarks.squeezenet import load_squeezenet
from benchmarks.trainings import Training, train_all
from velogan.config import read_config
from velogan.engine.device import resolve_device
from velogan.engine.duration import parse_span
from velogan.evaluation.evaluate import evaluate
from velogan.evaluation.features import default_features
from velogan.files import write_text
from velogan.observe.progress import Display
from velogan.report.page import read_asset
from velogan.report.plots import Drawing, estimate_text_width
from velogan.report.sections import text
from velogan.report.sweep_page import build_image_strips
from velogan.store.checkpoint import default_checkpoint, digest, find_checkpoint
from velogan.sweep.pictures import held_out_pictures
from velogan.sweep.plan import read_plan

ROOT = Path(__file__).resolve().parents[1]
RENDERED = "apples2oranges"
DIRECTIONS = {"a2b": "A to B", "b2a": "B to A"}
FIGURES = {
    "closed": ("Distance closed", "%"),
    "share": ("Taken for the target's class", "%"),
    "structure": ("Layout kept", ""),
    "retrieval": ("More like the own input than like another", "%"),
    "psnr_truth_db": ("To the truth", "dB"),
    "psnr_object_db": ("Object to the truth", "dB"),
    "label_accuracy": ("Pixels with the right label", "%"),
    "psnr_outside_db": ("Outside the mask, to the input", "dB"),
    "striped_outside": ("Pictures with stripes outside the mask", "%"),
}
"""Figures in the order of the page, with their units."""

CLOSED = (
    "0: as far from real pictures as doing nothing is; 100: as near as other real ones; below 0: farther. Kernel "
    "distance over EfficientNet-Lite2, on test pictures."
)

Cell = dict[str, Any]
"""A figure of one direction of a set: `nothing` and `real` where known, and `recipes`: its values by recipe, a seed
each."""

Rows = dict[tuple[str, str], Cell]
"""By set and direction."""


def main() -> int:
    options = arguments(__doc__ or "").parse_args()
    trainings = _trainings(options)
    if options.within:
        options.minutes = _each(options, trainings)
        trainings = _trainings(options)
    with Display() as display:
        return compare(trainings, options, display)


def arguments(description: str) -> argparse.ArgumentParser:
    """Return the flags of this script."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", nargs="?", type=Path, default=ROOT / "benchmarks" / "plans" / "sets.yaml")
    parser.add_argument("--sets", type=Path, help="the folder with the sets")
    parser.add_argument("--only", nargs="+", metavar="SET")
    parser.add_argument("--recipes", nargs="+", metavar="PRESET", help="some of the plan's")
    parser.add_argument("--out", type=Path, required=True)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float)
    length.add_argument("--within", type=float, metavar="MINUTES", help="all of it, and at most the plan's length each")
    length.add_argument("--images", type=int)
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--size", choices=["xs", "s", "m", "l"])
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--parallel", type=int, default=1, help="trainings at a time")
    parser.add_argument("--squeezenet", type=Path, help="SqueezeNet 1.0 judges, too")
    parser.add_argument("--last", action="store_true", help="score the last checkpoints")
    parser.add_argument("--limit", type=int, help="at most so many test pictures of a domain")
    return parser


def compare(trainings: Sequence[Training], options: argparse.Namespace, display: Display) -> int:
    """Train what is left, score all, write tables and page, and return the exit code."""
    reasons = train_all(trainings, parallel=options.parallel, print_line=display.print_line)
    runs = [_scored(training, reasons[training], options, display) for training in trainings]
    tables = tabled(runs)
    names = list(dict.fromkeys(training.of for training in trainings))
    pictures = {name: _pictures(runs, name, display) for name in names}
    write_text(options.out / "sets.json", json.dumps(runs, indent=1, default=str))
    drawn = drawing(tables.get("closed", {}))
    write_text(options.out / "sets.svg", drawn)
    write_text(options.out / "sets.html", page(tables, pictures, runs, drawn=drawn, command=sys.argv))
    display.print_line(f"page: {options.out / 'sets.html'}")
    print("\n".join(markdown(tables)))
    return 1 if any(run["reason"] for run in runs) else 0


def find_sets(options: argparse.Namespace) -> dict[str, str]:
    """Where pictures lie, by the name of the set. Ends with a sentence where there are none."""
    if options.sets and not options.sets.is_dir():
        raise SystemExit(f"--sets {options.sets}: there is no such folder; name one that holds sets")
    folders = sorted(options.sets.iterdir()) if options.sets else []
    paths = {folder.name: str(folder) for folder in folders if all((folder / f"train{x}").is_dir() for x in "AB")}
    paths[RENDERED] = RENDERED
    if unknown := [name for name in options.only or () if name not in paths]:
        raise SystemExit(f"--only {' '.join(unknown)}: there are {', '.join(paths)}")
    return {name: paths[name] for name in options.only or paths}


def _trainings(options: argparse.Namespace) -> list[Training]:
    """All recipes of the plan on all sets."""
    words = {
        name: getattr(options, name) for name in ("image_size", "size", "seeds") if getattr(options, name) is not None
    }
    if options.minutes is not None or options.images is not None:
        words |= {"minutes": options.minutes, "images": options.images}
    trainings: list[Training] = []
    for name, path in find_sets(options).items():
        plan = read_plan(options.plan, data=path, **words)
        for trial in plan.known_trials():
            recipe = trial.settings.get("preset", next(iter(plan.bases)))
            if not options.recipes or recipe in options.recipes:
                trainings.append(Training(name, recipe, trial.seed, trial.config, options.out / name / "trials"))
    return trainings


def _each(options: argparse.Namespace, trainings: Sequence[Training]) -> float | None:
    """Minutes of each training, where all of them and their scores have `--within`."""
    waves = -(-len(trainings) // options.parallel)
    each = options.within / waves - SCORING_S * options.parallel / 60
    if each < 1:
        raise SystemExit(
            f"--within {options.within:g} minutes is too short for {len(trainings)} trainings: name fewer sets"
        )
    span = parse_span(trainings[0].config.train.length)
    return min(each, span.amount) if span.unit == "minutes" else None


def _scored(training: Training, reason: str, options: argparse.Namespace, display: Display) -> dict[str, Any]:
    """What is known of a run: `set`, `recipe`, `seed`, `run`, `reason` where it failed, and figures by direction."""
    name, run = training.of, training.run
    known = {"set": name, "recipe": training.name, "seed": training.seed, "run": str(run), "reason": ""}
    saved = run.with_name(f"{run.name}.scores.json")
    try:
        which = "last" if options.last else default_checkpoint(run)
        at = find_checkpoint(run, which)
        of = {"sha256": digest(at), "limit": options.limit, "squeezenet": bool(options.squeezenet)}
        if saved.is_file() and (before := json.loads(saved.read_text())).get("of") == of:
            return {**known, **before["found"]}
        device = resolve_device(read_config(run).engine.device)
        shares = dict(zip(DIRECTIONS, (int(word.partition("=")[2]) for word in CLASSES.get(name, ()))))
        scores = evaluate(
            run,
            checkpoint=which,
            features=default_features(),
            judges=[load_squeezenet(options.squeezenet, device)] if options.squeezenet else [],
            classes={f"class {index}": index for index in shares.values()},
            limit=options.limit,
            device=device,
            task=display.task,
        )["scores"]
        result = {"images": int(at.name), "checkpoint": which, "ways": figures(scores, shares)}
        for direction, values in outside(run, device=device).items():
            result["ways"][direction] |= {figure: {"value": value} for figure, value in values.items()}
        write_text(saved, json.dumps({"of": of, "found": result}))
        return {**known, **result}
    except (ValueError, OSError) as error:
        return {**known, "reason": reason or str(error), "images": 0, "checkpoint": "", "ways": {}}


def figures(scores: Sequence[Mapping[str, Any]], shares: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """By direction, figures with their `value`, `nothing` and `real`, of what `evaluate` gives of averaged weights."""
    by_direction: dict[str, dict[str, Any]] = {}
    for score in scores:
        if score["weights"] == "raw" and any(other["weights"] == "ema" for other in scores):
            continue
        name, direction = score["name"], score["direction"]
        values = by_direction.setdefault(direction, {})
        value, nothing, real = (score[key] for key in ("value", "baseline", "real"))
        judge = "" if name.startswith("lite2") else " (SqueezeNet)"
        if name in ("lite2_kid", "squeeze_kid") and (share := closed_fraction(score)) is not None:
            values[f"closed{judge}"] = {"value": share}
        elif name.endswith(f"_share_class_{shares.get(direction)}"):
            values[f"share{judge}"] = {"value": value, "nothing": nothing, "real": real}
        elif name in FIGURES:
            values[name] = {"value": value, "nothing": nothing, "real": real if name == "retrieval" else None}
    return by_direction


def tabled(runs: Sequence[Mapping[str, Any]]) -> dict[str, Rows]:
    """By figure, its rows: those that some run has, in the order of `FIGURES`."""
    tables: dict[str, Rows] = {}
    for run in runs:
        for direction, values in run["ways"].items():
            for name, entry in values.items():
                if name.partition(" ")[0] not in FIGURES or entry["value"] is None:
                    continue
                row = tables.setdefault(name, {}).setdefault((run["set"], direction), {"recipes": {}})
                row |= {key: entry[key] for key in ("nothing", "real") if entry.get(key) is not None}
                row["recipes"].setdefault(run["recipe"], []).append(entry["value"])
    order = list(FIGURES)
    return dict(sorted(tables.items(), key=lambda item: (order.index(item[0].partition(" ")[0]), item[0])))


def grid(name: str, rows: Rows) -> list[list[str]]:
    """The head and the rows of a figure's table, as text; of what is closed, the median and the lowest at the end."""
    recipes = list(dict.fromkeys(recipe for row in rows.values() for recipe in row["recipes"]))
    kinds = [kind for kind in ("nothing", "real") if any(kind in row for row in rows.values())]
    head = ["set", "direction", *({"nothing": "doing nothing", "real": "real pictures"}[kind] for kind in kinds)]
    lines = [[*head, *recipes]]
    for (of, direction), row in rows.items():
        known = [_shown(name, [row[kind]]) if kind in row else "" for kind in kinds]
        lines.append(
            [of, DIRECTIONS[direction], *known, *(_shown(name, row["recipes"].get(recipe, [])) for recipe in recipes)]
        )
    if name.startswith("closed"):
        for word, of in (("median", median), ("lowest", min)):
            means = {
                recipe: [fmean(row["recipes"][recipe]) for row in rows.values() if recipe in row["recipes"]]
                for recipe in recipes
            }
            lines.append([word, "", *(_shown(name, [of(means[recipe])]) for recipe in recipes)])
    return lines


def _shown(name: str, values: Sequence[float]) -> str:
    """The mean over seeds, and their range."""
    if not values:
        return ""
    unit = FIGURES[name.partition(" ")[0]][1]

    def formatted(value: float) -> str:
        return f"{round(100 * value)}" if unit == "%" else f"{value:.1f}" if unit == "dB" else f"{value:.2f}"

    several = f" ({formatted(min(values))} to {formatted(max(values))})" if len(values) > 1 else ""
    return f"{formatted(fmean(values))}{several}"


def titled(name: str) -> str:
    """A figure's name and its unit."""
    first, _, judge = name.partition(" ")
    words, unit = FIGURES[first]
    return f"{words}{f' {judge}' if judge else ''}{f', {unit}' if unit else ''}"


def markdown(tables: Mapping[str, Rows]) -> Iterator[str]:
    """The tables as lines of Markdown."""
    for name, rows in tables.items():
        head, *lines = grid(name, rows)
        yield from ("", titled(name), "", f"| {' | '.join(head)} |", "|---" * len(head) + "|")
        yield from (f"| {' | '.join(line)} |" for line in lines)


def drawing(rows: Rows) -> str:
    """What is closed as SVG: a line for each set and direction, a dot for each recipe's mean over seeds."""
    recipes = list(dict.fromkeys(recipe for row in rows.values() for recipe in row["recipes"]))
    left, right, top, apart = 190, 740, 64, 24
    low = max(-1.0, min([0.0, *(fmean(values) for row in rows.values() for values in row["recipes"].values())]))

    def across(value: float) -> float:
        return left + (right - left) * (min(max(value, low), 1.0) - low) / (1.0 - low)

    picture = Drawing(right + 30, top + apart * len(rows) + 12)
    x = 16.0
    for number, recipe in enumerate(recipes):
        picture.rect(x, 14, 10, 10, f"c{number % 7}", rx=5)
        picture.text(x + 15, 23, recipe)
        x += 36 + estimate_text_width(recipe, 12)
    bottom = top + apart * len(rows) - 8
    for value, word in ((-1.0, "-100 or less"), (-0.5, "-50"), (0.0, "0: doing nothing"), (0.5, "50"), (1.0, "100 %")):
        if value >= low:
            picture.line(
                [(across(value), top - 12), (across(value), bottom)], "flow" if value == 0 else "grid", width=1
            )
            picture.text(across(value), top - 18, word, css_class="soft", size=11, anchor="middle")
    for place, ((name, direction), row) in enumerate(rows.items()):
        y = top + apart * place + 4
        picture.text(left - 24, y + 4, f"{name}, {DIRECTIONS[direction]}", anchor="end")
        for recipe, values in row["recipes"].items():
            kind = f"c{recipes.index(recipe) % 7}"
            picture.line([(across(min(values)), y), (across(max(values)), y)], kind, width=2)
            picture.rect(
                across(fmean(values)) - 5, y - 5, 10, 10, kind, rx=5, title=f"{recipe}: {_shown('closed', values)}"
            )
    return picture.to_svg_file(title="Distance closed by each recipe, for each set and direction")


def _pictures(runs: Sequence[Mapping[str, Any]], name: str, display: Display) -> str:
    """The same held-out pictures by each recipe's first run."""
    of_set = [run for run in runs if run["set"] == name and not run["reason"]]
    trials = [{"status": "done", "score": run["seed"], "setting": run["recipe"], "run": run["run"]} for run in of_set]
    result = {"better": "lower", "trials": trials, "verdicts": {run["recipe"]: {} for run in of_set}}
    note = "Pictures that none of these runs was trained on, by the checkpoint that translate takes of seed 0."
    return build_image_strips(held_out_pictures(result, checkpoint=None, print_line=display.print_line), note)


def page(
    tables: Mapping[str, Rows],
    pictures: Mapping[str, str],
    runs: Sequence[Mapping[str, Any]],
    *,
    drawn: str,
    command: Sequence[str],
) -> str:
    """The whole page: what is closed first, then pictures, then other figures and runs."""
    (title, table), *others = [
        (titled(name), _table(grid(name, rows), CLOSED if name.startswith("closed") else ""))
        for name, rows in tables.items()
    ] or [("", "")]
    image = base64.b64encode(drawn.encode()).decode()
    attributes = 'alt="The next table, drawn" style="width: 100%; min-width: 600px"'
    shown = f'<p class="wide"><img {attributes} src="data:image/svg+xml;base64,{image}"></p>'
    sections = [(title, shown + table), *((f"Held-out pictures: {name}", body) for name, body in pictures.items())]
    sections += others
    ran = [["set", "recipe", "seed", "images", "scored checkpoint", "failed"]]
    ran += [[str(run[key]) for key in ("set", "recipe", "seed", "images", "checkpoint", "reason")] for run in runs]
    sections.append(("Runs", _table(ran)))
    facts = f"{len(pictures)} sets, {len({run['recipe'] for run in runs})} recipes, {len(runs)} runs"
    return Template(read_asset("sweep.html")).substitute(
        title="Recipes over sets",
        style=read_asset("page.css"),
        head=f'<h1>Recipes over sets</h1><p class="lead">{text(_lead(tables))}</p>'
        f'<p class="facts">{facts} · {text(" ".join(command))}</p>',
        sections="\n".join(f"<section><h2>{text(title)}</h2>{body}</section>" for title, body in sections if body),
    )


def _lead(tables: Mapping[str, Rows]) -> str:
    """The answer in a sentence: what each recipe closes over all directions, the best first."""
    rows = tables.get("closed", {})
    means: dict[str, list[float]] = {}
    for row in rows.values():
        for recipe, values in row["recipes"].items():
            means.setdefault(recipe, []).append(fmean(values))
    order = sorted(means, key=lambda recipe: -median(means[recipe]))
    shown = (
        f"{recipe} {_shown('closed', [median(means[recipe])])} % ({_shown('closed', [min(means[recipe])])} %)"
        for recipe in order
    )
    return (
        f"Distance closed, median over directions (the lowest): {', '.join(shown)}." if order else "No run was scored."
    )


def _table(lines: Sequence[Sequence[str]], note: str = "") -> str:
    head, *rows = lines
    heads = "".join(f"<th>{text(word)}</th>" for word in head)
    body = "".join(f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    caption = f'<p class="note">{text(note)}</p>' if note else ""
    return f'<div class="card"><div class="wide">{table}</div>{caption}</div>'


if __name__ == "__main__":
    sys.exit(main())
