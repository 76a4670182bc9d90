"""Score over time of several methods, with equal training time: runs them, scores every checkpoint, draws it.

    python benchmarks/onepair.py speed --out runs/methods --data apples2oranges --image-size 128 --size s
    python benchmarks/onepair.py train --out runs/methods --minutes 60
    python benchmarks/onepair.py score --out runs/methods --squeezenet squeezenet1_0.npz
    python benchmarks/onepair.py draw --out runs/methods methods.svg
    python benchmarks/onepair.py grid --out runs/methods grid.png
    python benchmarks/onepair.py epochs --data apple2orange --out epochs.json

`speed` times a step of every contender by turns in one process, on one thread, and writes OUT/speeds.json. `train`
gives each contender the number of images that the minutes allow at that speed. So other work on the machine puts no
contender at a disadvantage, and a run can be repeated bit for bit. It makes a run OUT/CONTENDER-SEED for each, one
after the other. The same command continues where it was stopped; `--only onepair-plus:1` does one run, so several
processes can share the work. `score` writes OUT/scores.json: every checkpoint of every run, scored as `velogan
evaluate` does it; what is scored already is kept. `draw` makes the picture: a thick line for the mean over seeds,
thin lines for each seed. `grid` shows twelve test pictures of A beside their translations by the end of every run.
`epochs` is independent of the others: it trains the presets by turns, at full size and on all threads, for a share of
an epoch, and writes how long an epoch takes with each.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from epochs import measure_epochs, render_epochs
from rich.console import Console

from velogan.config import Config, read_config
from velogan.data.domains.cache import open_domain
from velogan.data.domains.loader import normalise
from velogan.data.domains.sources import cache_directory, find_sources
from velogan.deploy.model import load_translator
from velogan.evaluation.evaluate import load_networks
from velogan.evaluation.scoring import Scorer, finite
from velogan.files import write_text
from velogan.measure.bench.contestant import Contestant
from velogan.observe.progress import Display
from velogan.observe.samples import write_grid
from velogan.recipes import BENCHED, RECIPES
from velogan.report.scores import LABELS
from velogan.report.svg import Picture, text_width
from velogan.run import train
from velogan.store.checkpoint import list_checkpoints

CONTENDERS: dict[str, Callable[[], Config]] = {
    **{name: RECIPES[name] for name in BENCHED},
    "cyclegan-tuned": lambda: RECIPES["cyclegan"]().change(
        generator={"norm": "none", "init": "kaiming"},
        method={"cycle_a": 20.0, "cycle_b": 20.0, "identity_a": 1.0, "identity_b": 1.0},
        optimizer={"lr": 4e-4},
    ),
}
"""The presets, and CycleGAN with the changes that the preset `demo` makes for short trainings."""

CHECKPOINTS = 8
ROUNDS = 9
SHOWN = ("psnr_object_db", "psnr_truth_db", "ssim_object", "ssim_truth", "psnr_background_db", "squeeze_kid")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP = 480, 190, 52, 16, 76


def configure(contender: str, setting: Mapping[str, Any]) -> Config:
    """The contender at the size that `setting` asks for, on one thread."""
    config = CONTENDERS[contender]()
    config = config.sized(setting["size"]) if setting["size"] else config
    data = {"path": setting["data"], "crop_size": setting["image_size"], "batch_size": setting["batch_size"]}
    return config.change(data={**data, "validation": 0}, engine={"threads": 1})


def measure_speed(asked: argparse.Namespace) -> None:
    """Measure seconds per image of each contender, the median of its turns."""
    setting = {name: getattr(asked, name) for name in ("data", "image_size", "size", "batch_size")}
    ones = {name: Contestant(name, configure(name, setting), engine={}, say=print) for name in CONTENDERS}
    for one in ones.values():
        one.warm_up()
    for _ in range(ROUNDS):
        for one in ones.values():
            one.seconds.append(one.timed(one.run))
    found = {name: statistics.median(one.seconds) / asked.batch_size for name, one in ones.items()}
    asked.out.mkdir(parents=True, exist_ok=True)
    write_text(asked.out / "speeds.json", json.dumps({"setting": setting, "seconds_per_image": found}, indent=1))
    for name, seconds in found.items():
        print(f"{name}: {1000 * seconds:.1f} ms an image, {found['cyclegan'] / seconds:.2f} times as fast as cyclegan")


def time_epochs(asked: argparse.Namespace) -> None:
    """Write and print how long an epoch takes with each preset."""
    data = {"path": asked.data, "crop_size": asked.image_size, "validation": 0}
    configs = {name: RECIPES[name]().sized(asked.size).change(data=data) for name in BENCHED}
    with Display() as display:
        result = measure_epochs(configs, fraction=asked.fraction, display=display)
    write_text(asked.out, json.dumps(result, indent=1))
    for part in render_epochs(result):
        Console().print(part)


def train_all(asked: argparse.Namespace) -> None:
    """Train each run that has not reached its end."""
    if not (asked.out / "speeds.json").is_file():
        raise SystemExit(f"--out {asked.out} holds no speeds.json: run `speed` with the same --out first")
    speeds = json.loads((asked.out / "speeds.json").read_text())
    todo = [(name, seed) for seed in asked.seeds for name in asked.contenders]
    if asked.only:
        todo = [(name, int(seed)) for name, _, seed in (word.partition(":") for word in asked.only)]
    for name, seed in todo:
        config = configure(name, speeds["setting"]).change(
            train={
                "length": f"{round(60 * asked.minutes / speeds['seconds_per_image'][name])} images",
                "seed": seed,
                "checkpoint_every": f"{100 / CHECKPOINTS} %",
                "keep": 2 * CHECKPOINTS,
                "sample_every": "50 %",
                "tensorboard": False,
            },
        )
        with Display() as display:
            display.say(f"{name}, seed {seed}")
            origin = {"preset": name, "command": "benchmarks/onepair.py"}
            train(config, asked.out / f"{name}-{seed}", display=display, origin=origin)


def score_all(asked: argparse.Namespace) -> None:
    """Score A to B at every checkpoint, with averaged weights; write the scores after each."""
    file = asked.out / "scores.json"
    speeds = json.loads((asked.out / "speeds.json").read_text())["seconds_per_image"]
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"] if file.is_file() else []
    known = {(row["run"], row["checkpoint"]) for row in rows}
    with Display() as display:
        for run in sorted(path.parent for path in asked.out.glob("*/config.yaml")):
            folders = [folder for folder in list_checkpoints(run) if (run.name, folder.name) not in known]
            if folders:
                for row in _score(run, folders, asked, speeds, display.task):
                    rows.append(row)
                    write_text(file, json.dumps({"rows": rows}, indent=1))


def _score(
    run: Path, folders: list[Path], asked: argparse.Namespace, speeds: Mapping[str, float], task: Callable[[str], Any]
):
    config = read_config(run)
    networks = load_networks("none", asked.squeezenet, None, cache_directory(config.data), device="cpu", task=task)
    classes = {name: int(number) for name, _, number in (word.partition("=") for word in asked.classes)}
    scorer = Scorer(config, networks, classes, asked.limit, 0, task)
    sources = find_sources(config.data, progress=task("finding pictures"))
    a, b = scorer.open(sources.a, sources.b), scorer.open(sources.b, sources.a)
    bounds = scorer.bounds(a, b)
    preset, _, seed = run.name.rpartition("-")
    for folder in folders:
        translator = load_translator(folder, direction="a2b", weights="ema")
        figures = {score["name"]: score["value"] for score in scorer.score(translator, a, b, bounds)}
        yield {
            "run": run.name,
            "preset": preset,
            "seed": int(seed),
            "checkpoint": folder.name,
            "images": int(folder.name),
            "seconds": int(folder.name) * speeds[preset],
            "figures": figures,
            "nothing": {name: finite(value) for name, value in bounds.baseline.items() if name in figures},
            "real": {name: finite(value) for name, value in bounds.real.items() if name in figures},
        }


def draw(rows: list[Mapping[str, Any]], *, title: str) -> str:
    """Panels one below the other, each figure over minutes of training. ValueError if there is nothing to draw."""
    names = [name for name in SHOWN if any(name in row["figures"] for row in rows)]
    if not names:
        raise ValueError("there are no scores to draw: run `score` first")
    presets = sorted({row["preset"] for row in rows})
    picture = Picture(_WIDTH, _TOP + _HEIGHT * len(names) + 14)
    picture.text(16, 28, title, size=16, weight=600)
    x = 16.0
    for number, preset in enumerate(presets):
        picture.rect(x, 42, 10, 10, f"c{number}")
        picture.text(x + 15, 52, preset, kind="soft", size=12)
        x += 31 + text_width(preset, 12)
    for index, name in enumerate(names):
        _panel(picture, _TOP + index * _HEIGHT, name, rows, presets)
    return picture.file(title=title)


def _panel(picture: Picture, top: float, name: str, rows: list[Mapping[str, Any]], presets: list[str]) -> None:
    lines = {
        (preset, seed): [
            (row["seconds"] / 60, row["figures"][name])
            for row in sorted(rows, key=lambda row: row["seconds"])
            if (row["preset"], row["seed"]) == (preset, seed) and row["figures"].get(name) is not None
        ]
        for preset, seed in sorted({(row["preset"], row["seed"]) for row in rows})
    }
    points = [point for line in lines.values() for point in line]
    latest, low, high = max(x for x, _ in points), min(y for _, y in points), max(y for _, y in points)
    span, bottom, height = (high - low) or 1.0, top + _HEIGHT - 34, _HEIGHT - 66

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x, y = point
        return _LEFT + x / latest * (_WIDTH - _LEFT - _RIGHT), bottom - (y - low) / span * height

    picture.text(16, top + 18, LABELS.get(name, name), size=13, weight=600)
    for share in (0, 0.5, 1):
        value = low + share * span
        y = place((0, value))[1]
        picture.line([(_LEFT, y), (_WIDTH - _RIGHT, y)], "grid", width=1)
        picture.text(_LEFT - 8, y + 4, f"{value:.3g}", kind="soft", size=11, anchor="end")
    picture.text(_LEFT, bottom + 18, "0", kind="soft", size=11, anchor="middle")
    picture.text(_WIDTH - _RIGHT, bottom + 18, f"{latest:.0f} minutes", kind="soft", size=11, anchor="end")
    for number, preset in enumerate(presets):
        seeds = [line for (one, _), line in lines.items() if one == preset and line]
        for line in seeds:
            picture.line([place(point) for point in line], f"c{number}", width=0.7)
        if len(seeds) > 1:
            means = [tuple(map(fmean, zip(*same))) for same in zip(*seeds)]
            picture.line([place((x, y)) for x, y in means], f"c{number}", width=2.4)


def draw_all(asked: argparse.Namespace) -> None:
    """Draw the scores."""
    rows = json.loads((asked.out / "scores.json").read_text())["rows"]
    asked.picture.write_text(draw(rows, title=asked.title))


def show(asked: argparse.Namespace) -> None:
    """Write a grid: test pictures of A, and their translations by the last averaged weights of every run."""
    runs = sorted(path.parent for path in asked.out.glob("*/config.yaml"))
    config = read_config(runs[0])
    side = find_sources(config.data).a
    folder = side.test or side.train
    step = max(1, len(folder.names) // asked.count)
    names = folder.names[::step][: asked.count]
    domain = open_domain(replace(folder, names=names), config.data, test=True)
    images = torch.cat([normalise(torch.from_numpy(domain.image(index)[None])) for index in range(len(domain))])
    columns = [images]
    for run in runs:
        print(f"{run.name}: column {len(columns) + 1}")
        columns.append(load_translator(run, direction="a2b", weights="ema", checkpoint="last")(images))
    write_grid(asked.picture, torch.stack(columns, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)

    def command(name: str, run: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
        made = commands.add_parser(name)
        made.set_defaults(run=run)
        made.add_argument("--out", type=Path, required=True)
        return made

    speed = command("speed", measure_speed)
    speed.add_argument("--data", nargs="+", default=["apples2oranges"])
    speed.add_argument("--size", choices=["xs", "s", "m", "l"])
    speed.add_argument("--image-size", type=int, default=128)
    speed.add_argument("--batch-size", type=int, default=1)
    training = command("train", train_all)
    training.add_argument("--contenders", nargs="+", default=list(BENCHED), choices=list(CONTENDERS))
    training.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    training.add_argument("--only", nargs="+", metavar="CONTENDER:SEED")
    training.add_argument("--minutes", type=float, required=True)
    score = command("score", score_all)
    score.add_argument("--squeezenet", type=Path)
    score.add_argument("--classes", nargs="*", default=[], metavar="NAME=NUMBER")
    score.add_argument("--limit", type=int)
    drawing = command("draw", draw_all)
    drawing.add_argument("picture", type=Path)
    drawing.add_argument("--title", default="Score over training time")
    grid = command("grid", show)
    grid.add_argument("picture", type=Path)
    grid.add_argument("--count", type=int, default=12)
    epochs = command("epochs", time_epochs)
    epochs.add_argument("--data", nargs="+", required=True)
    epochs.add_argument("--size", choices=["xs", "s", "m", "l"], default="l")
    epochs.add_argument("--image-size", type=int, default=256)
    epochs.add_argument("--fraction", type=float, default=0.02)
    asked = parser.parse_args()
    asked.run(asked)


if __name__ == "__main__":
    main()
