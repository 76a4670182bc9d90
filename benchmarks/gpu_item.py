"""What an item of `benchmarks/gpu.py` is, and what items share: commands, trainings at once, tables."""

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
"""Below `--data`: the network that scores, which no discriminator uses."""

CLASSES = {
    "horse2zebra": ("zebra=340", "horse=339"),
    "apple2orange": ("orange=950", "apple=948"),
}
"""ImageNet classes of a set's domains, where there are any."""

SCORING_S = 60
"""Seconds that are kept for the scores of a training."""

STARTING_S = 30
"""Seconds in which a training starts, and reads its pictures."""

TINY = (
    *("--images", "4", "--image-size", "32", "--data.render-count", "4", "--data.render-test", "2"),
    *("--generator.channels", "4", "--generator.blocks", "1", "--discriminator.channels", "4"),
)
"""Flags in place of a training's own where sizes are tiny."""


@dataclass(frozen=True)
class Asked:
    """What an item is given: its own folder `out`, the folder `data` with sets, and the time at which it `ends`.

    `ends` is in seconds of `time.time()`. `tiny`: at sizes that two processor cores compute in seconds. `at_once` is
    how many trainings run at a time.
    """

    out: Path
    data: Path | None
    tiny: bool
    ends: float
    at_once: int

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self.ends - time.time()

    def set(self, name: str) -> str:
        """What `--data` of a command says for this set. ValueError where it is not there."""
        if self.tiny and self.data is None:
            return "apples2oranges"
        if self.data is None or not (self.data / name).is_dir():
            raise ValueError(f"it needs the set {name}: give a folder that has it as --data")
        return str(self.data / name)

    def call(self, argv: Sequence[str], log: str, *, until: float | None = None) -> tuple[int, str]:
        """Runs `python ARGV` to its end, or `until` then; returns its exit code and what it printed.

        What it says on standard error goes to the file `log`. It is asked to end when the time is up, and has 30
        seconds for it.
        """
        env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        with open(self.out / f"{log}.log", "a", encoding="utf-8") as said:
            command = [sys.executable, *argv]
            child = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=said, text=True, cwd=ROOT, env=env, preexec_fn=_heeds_interrupts
            )
            try:
                printed, _ = child.communicate(timeout=max((until or self.ends) - time.time(), 1))
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGINT)
                try:
                    printed, _ = child.communicate(timeout=30)
                except subprocess.TimeoutExpired:
                    child.kill()
                    printed, _ = child.communicate()
        return child.returncode, printed


def _heeds_interrupts() -> None:
    """What a shell starts in the background ignores them, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass(frozen=True)
class Found:
    """What an item found: `figures` for the JSON file, and lines of Markdown for RECORDS.md."""

    figures: Any
    lines: list[str]


@dataclass(frozen=True)
class Item:
    """`run` with its `name`; `minutes` are estimated on one H100. `timed`: it measures time, so it runs alone.

    `least`: minutes with which it can do something, where that is less: trainings become shorter.
    """

    name: str
    run: Callable[[Asked], Found]
    minutes: float
    least: float
    timed: bool

    @property
    def what(self) -> str:
        """The first line of its docstring."""
        return str(self.run.__doc__).strip().splitlines()[0]


ITEMS: dict[str, Item] = {}
"""By name, in order of importance: that of their definition."""


def item(*, minutes: float, least: float | None = None, timed: bool = True) -> Callable[..., Callable[[Asked], Found]]:
    """Registers a function as the item of its name."""

    def add(run: Callable[[Asked], Found]) -> Callable[[Asked], Found]:
        name = run.__name__
        ITEMS[name] = Item(name, run, minutes, minutes if least is None else least, timed)
        return run

    return add


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = [" | ".join(map(str, row)) for row in (head, ["---"] * len(head), *rows)]
    return [f"| {line} |" for line in lines]


@dataclass(frozen=True)
class Training:
    """`flags` of `velogan train`, the preset first, and the `set` that it learns.

    With `minutes` it trains so long, or for as long as there is time; else the flags say how long.
    """

    name: str
    set: str
    flags: tuple[str, ...]
    seed: int = 0
    minutes: float | None = None


def train_all(asked: Asked, trainings: Sequence[Training]) -> list[dict[str, Any]]:
    """A row for each training, with its scores; `asked.at_once` of them run at a time.

    What the clock ends is scored as it is. A row has `error` where a training or its scoring failed.
    """
    waves = -(-len(trainings) // asked.at_once)
    each = asked.left / waves - SCORING_S
    with ThreadPoolExecutor(asked.at_once) as pool:
        return list(pool.map(lambda one: _train(asked, one, seconds=each), trainings))


def _train(asked: Asked, one: Training, *, seconds: float) -> dict[str, Any]:
    run, began = asked.out / one.name, time.time()
    row: dict[str, Any] = {"name": one.name, "set": one.set, "flags": one.flags, "seed": one.seed, "run": str(run)}
    flags = list(one.flags)
    if asked.tiny:
        flags = [one.flags[0], *TINY]
    elif one.minutes is not None:
        flags += ["--minutes", f"{min(one.minutes, (seconds - STARTING_S) / 60):.3g}"]
    try:
        common = ["--data", asked.set(one.set), "--out", str(run), "--seed", str(one.seed), "--json"]
        command = ["-m", "velogan", "train", *flags, *common]
        code, printed = asked.call(command, one.name, until=began + max(seconds, 1))
        row["seconds"] = time.time() - began
        if code and not (run / "checkpoints").is_dir():
            raise ValueError(f"training ended with exit code {code}: see {one.name}.log")
        with suppress(ValueError, IndexError):
            row["images"] = json.loads(printed.splitlines()[-1])["images_seen"]
        row["scores"] = _scores(asked, one, run)
    except (ValueError, OSError) as error:
        row["error"] = str(error)
    return row


def _scores(asked: Asked, one: Training, run: Path) -> list[dict[str, Any]]:
    command, flags = ["velogan", "evaluate"], ["--checkpoint", "last"]
    if asked.data is not None and (weights := asked.data / SQUEEZENET).is_file():
        command, flags = ["benchmarks.squeezenet"], [*flags, "--weights", str(weights)]
        if one.set in CLASSES and not asked.tiny:
            flags += ["--classes", *CLASSES[one.set]]
    elif asked.tiny:
        flags += ["--features", "none"]
    code, printed = asked.call(["-m", *command, str(run), *flags, "--json"], f"{one.name}-scores")
    if code:
        raise ValueError(f"scoring ended with exit code {code}: see {one.name}-scores.log")
    return [score for score in json.loads(printed.splitlines()[-1])["scores"] if score["weights"] == "ema"]


def closed(score: Mapping[str, Any]) -> float | None:
    """The share of the way from doing nothing to real pictures; None where there is no such way, or it is unknown."""
    value, nothing, real = (score.get(name) for name in ("value", "baseline", "real"))
    if value is None or nothing is None or real is None or nothing <= real:
        return None
    return (nothing - value) / (nothing - real)


def scores_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each training and direction: distance closed, share of the class, structure, error to the truth."""
    lines = []
    for row in rows:
        named = [row["name"], row.get("images", "?"), f"{row.get('seconds', 0):.0f}"]
        if "error" in row:
            lines.append([*named, row["error"], *["–"] * 4])
        for way in dict.fromkeys(score["direction"] for score in row.get("scores", ())):
            of = {score["name"]: score for score in row["scores"] if score["direction"] == way}
            kid = next((score for name, score in of.items() if name.endswith("kid")), {})
            shares = [f"{100 * score['value']:.1f} %" for name, score in of.items() if "_share_" in name]
            lines.append(
                [*named, way]
                + [_shown(closed(kid), "{:.0%}"), " / ".join(shares) or "–"]
                + [_shown(of.get(name, {}).get("value"), "{:.3g}") for name in ("structure", "psnr_truth_db")]
            )
    head = ("training", "images", "s", "direction", "distance closed", "taken for the classes", "structure", "truth dB")
    return table(head, lines)


def _shown(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
