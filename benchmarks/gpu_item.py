"""The items of `benchmarks/gpu.py`: their types, and the commands, parallel trainings and tables that they share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

SQUEEZENET = "weights/squeezenet1_0_imagenet_deepcompression.npz"
"""Path below `--data` of the scoring network, which no discriminator uses."""

CLASSES = {
    "horse2zebra": ("zebra=340", "horse=339"),
    "apple2orange": ("orange=950", "apple=948"),
}
"""ImageNet classes of the domains of a set, if there are any."""

SCORING_S = 60
"""Seconds reserved for the scores of a training."""

STARTING_S = 30
"""Seconds in which a training starts and reads its pictures."""

TINY = (
    *("--images", "4", "--image-size", "32", "--data.render-count", "4", "--data.render-test", "2"),
    *("--generator.channels", "4", "--generator.blocks", "1", "--discriminator.channels", "4"),
)
"""Flags that replace those of a training if `--tiny` is set."""


@dataclass(frozen=True)
class Context:
    """The environment of an item.

    out: the item's folder
    data: the folder with sets
    tiny: sizes that two processor cores compute in seconds
    deadline: in seconds of `time.time()`
    parallel: number of trainings that run at the same time
    """

    out: Path
    data: Path | None
    tiny: bool
    deadline: float
    parallel: int

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.time()

    def set(self, name: str) -> str:
        """Return the value of `--data` for a set. Raises ValueError if it is not there."""
        if self.tiny and self.data is None:
            return "apples2oranges"
        if self.data is None or not (self.data / name).is_dir():
            raise ValueError(f"it needs the set {name}: give a folder that has it as --data")
        return str(self.data / name)

    def call(self, argv: Sequence[str], log: str, *, until: float | None = None) -> tuple[int, str]:
        """Run `python ARGV`, at most until the time `until`; return its exit code and standard output.

        Standard error goes to the file `log`. At the deadline it gets SIGINT, and SIGKILL 30 seconds later.
        """
        env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        with open(self.out / f"{log}.log", "a", encoding="utf-8") as error_log:
            command = [sys.executable, *argv]
            child = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=error_log,
                text=True,
                cwd=ROOT,
                env=env,
                preexec_fn=_reset_sigint,
            )
            try:
                printed, _ = child.communicate(timeout=max((until or self.deadline) - time.time(), 1))
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGINT)
                try:
                    printed, _ = child.communicate(timeout=30)
                except subprocess.TimeoutExpired:
                    child.kill()
                    printed, _ = child.communicate()
        return child.returncode, printed


def _reset_sigint() -> None:
    """Restore the default for SIGINT, which children of a background job of a shell otherwise ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass(frozen=True)
class Result:
    """The result of an item: `metrics` for the JSON file, and lines of Markdown for RECORDS.md."""

    metrics: Any
    lines: list[str]


@dataclass(frozen=True)
class Item:
    """A measurement.

    minutes: estimated duration on one H100
    min_minutes: minutes with which it can still do something, by shorter trainings
    is_timed: it measures time and therefore runs alone
    """

    name: str
    run: Callable[[Context], Result]
    minutes: float
    min_minutes: float
    is_timed: bool

    @property
    def description(self) -> str:
        """The first line of its docstring."""
        return str(self.run.__doc__).strip().splitlines()[0]


ITEMS: dict[str, Item] = {}
"""By name, in order of importance: that of their definition."""


def item(
    *, minutes: float, min_minutes: float | None = None, is_timed: bool = True
) -> Callable[..., Callable[[Context], Result]]:
    """Return a decorator that registers a function as the item of its name."""

    def add(run: Callable[[Context], Result]) -> Callable[[Context], Result]:
        name = run.__name__
        ITEMS[name] = Item(name, run, minutes, minutes if min_minutes is None else min_minutes, is_timed)
        return run

    return add


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [" | ".join(map(str, row)) for row in (head, ["---"] * len(head), *rows)]
    return [f"| {line} |" for line in lines]


@dataclass(frozen=True)
class Training:
    """A training: the `flags` of `velogan train`, the preset first, and the `set` to train on.

    minutes: the maximum length; None: the flags contain the length
    """

    name: str
    set: str
    flags: tuple[str, ...]
    seed: int = 0
    minutes: float | None = None


def train_all(context: Context, trainings: Sequence[Training]) -> list[dict[str, Any]]:
    """Run trainings, `context.parallel` at a time, and return a row with scores for each.

    Trainings that reach the deadline are scored as they are. A row has `error` if a training or its scoring failed.
    """
    waves = -(-len(trainings) // context.parallel)
    each = context.remaining_s / waves - SCORING_S
    with ThreadPoolExecutor(context.parallel) as pool:
        return list(pool.map(lambda training: _train(context, training, seconds=each), trainings))


def _train(context: Context, training: Training, *, seconds: float) -> dict[str, Any]:
    run, started_at = context.out / training.name, time.time()
    row: dict[str, Any] = {
        "name": training.name,
        "set": training.set,
        "flags": training.flags,
        "seed": training.seed,
        "run": str(run),
    }
    flags = list(training.flags)
    if context.tiny:
        flags = [training.flags[0], *TINY]
    elif training.minutes is not None:
        flags += ["--minutes", f"{min(training.minutes, (seconds - STARTING_S) / 60):.3g}"]
    try:
        common = ["--data", context.set(training.set), "--out", str(run), "--seed", str(training.seed), "--json"]
        command = ["-m", "velogan", "train", *flags, *common]
        code, printed = context.call(command, training.name, until=started_at + max(seconds, 1))
        row["seconds"] = time.time() - started_at
        if code and not (run / "checkpoints").is_dir():
            raise ValueError(f"training ended with exit code {code}: see {training.name}.log")
        with suppress(ValueError, IndexError):
            row["images"] = json.loads(printed.splitlines()[-1])["images_seen"]
        row["scores"] = _scores(context, training, run)
    except (ValueError, OSError) as error:
        row["error"] = str(error)
    return row


def _scores(context: Context, training: Training, run: Path) -> list[dict[str, Any]]:
    command, flags = ["velogan", "evaluate"], ["--checkpoint", "last"]
    if context.data is not None and (weights := context.data / SQUEEZENET).is_file():
        command, flags = ["benchmarks.squeezenet"], [*flags, "--weights", str(weights)]
        if training.set in CLASSES and not context.tiny:
            flags += ["--classes", *CLASSES[training.set]]
    elif context.tiny:
        flags += ["--features", "none"]
    code, printed = context.call(["-m", *command, str(run), *flags, "--json"], f"{training.name}-scores")
    if code:
        raise ValueError(f"scoring ended with exit code {code}: see {training.name}-scores.log")
    return [score for score in json.loads(printed.splitlines()[-1])["scores"] if score["weights"] == "ema"]


def closed_fraction(score: Mapping[str, Any]) -> float | None:
    """Return the fraction of the distance from the unchanged input to real pictures that is closed.

    Returns None if a value is unknown or the unchanged input is not farther away than other real pictures.
    """
    value, baseline, real = (score.get(name) for name in ("value", "baseline", "real"))
    if value is None or baseline is None or real is None or baseline <= real:
        return None
    return (baseline - value) / (baseline - real)


def scores_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line per training and direction: distance closed, share of the class, structure, error to the truth."""
    lines = []
    for row in rows:
        cells = [row["name"], row.get("images", "?"), f"{row.get('seconds', 0):.0f}"]
        if "error" in row:
            lines.append([*cells, row["error"], *["–"] * 4])
        for direction in dict.fromkeys(score["direction"] for score in row.get("scores", ())):
            by_name = {score["name"]: score for score in row["scores"] if score["direction"] == direction}
            kid = next((score for name, score in by_name.items() if name.endswith("kid")), {})
            shares = [f"{100 * score['value']:.1f} %" for name, score in by_name.items() if "_share_" in name]
            lines.append(
                [*cells, direction]
                + [_shown(closed_fraction(kid), "{:.0%}"), " / ".join(shares) or "–"]
                + [_shown(by_name.get(name, {}).get("value"), "{:.3g}") for name in ("structure", "psnr_truth_db")]
            )
    head = ("training", "images", "s", "direction", "distance closed", "share of the classes", "structure", "truth dB")
    return table(head, lines)


def _shown(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
