"""What the folder of a sweep says of each trial. The folders are the truth; nothing else is kept between commands.

DIR/trials/NAME     an ordinary run folder
DIR/status/NAME.json    how the last attempt ended: done, failed or stopped early, with the reason
DIR/status/NAME.log     what the run said
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from velogan.engine.duration import parse_span
from velogan.evaluation.metric import RESAMPLED_SUFFIX, higher_is_better
from velogan.files import write_text
from velogan.observe.log import read_stats
from velogan.store.checkpoint import list_checkpoints
from velogan.store.lock import lock_folder

Status = Literal["waiting", "running", "done", "failed", "stopped early"]


@dataclass(frozen=True)
class TrialState:
    """How far a trial is: `percent` of its budget, `images` seen, training `seconds`, the best `score` so far.

    `score` is None before the first one; `reason` says why it failed or was stopped.
    """

    status: Status
    reason: str = ""
    percent: int = 0
    images: int = 0
    seconds: float = 0.0
    score: float | None = None


def run_folder(out: Path, name: str) -> Path:
    """The run folder of a trial."""
    return out / "trials" / name


def log_file(out: Path, name: str) -> Path:
    """What a trial said on standard error."""
    return out / "status" / f"{name}.log"


def write_status(out: Path, name: str, status: Status, reason: str = "", **facts: Any) -> None:
    """Save the status of a trial; `facts` say what it is and where it ran."""
    path = _status_file(out, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps({"status": status, "reason": reason, **facts}))


def read_status(out: Path, name: str) -> Mapping[str, Any]:
    """Return what `write_status` saved last; empty if the file is missing or damaged."""
    return read_mapping(_status_file(out, name))


def read_mapping(file: Path) -> Mapping[str, Any]:
    """The JSON object in a file; an empty one where the file is missing or damaged."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def state_of(out: Path, name: str, *, budget: str, metric: str) -> TrialState:
    """How a trial stands. Done is what has a checkpoint at the end of `budget`, whatever else is kept."""
    run, kept = run_folder(out, name), read_status(out, name)
    images, seconds = saved(run)
    percent = share(budget, images=images, seconds=seconds)
    rows = read_stats(run) if run.is_dir() else []
    found = best_row(rows, metric)
    figures: dict[str, Any] = {"score": found[metric] if found else None}
    if percent >= 100:
        return TrialState("done", percent=100, images=images, seconds=seconds, **figures)
    for row in rows:  # a running trial is further than its last checkpoint
        images, seconds = max(images, int(row["images"])), max(seconds, row.get("seconds") or 0.0)
    percent = min(share(budget, images=images, seconds=seconds), 99)
    status = kept.get("status")
    ended = status in ("running", "failed") or (status == "stopped early" and kept.get("budget") == budget)
    return TrialState(
        status if ended else "waiting",  # pyright: ignore[reportArgumentType]
        str(kept.get("reason", "")) if ended else "",
        percent=percent,
        images=images,
        seconds=seconds,
        **figures,
    )


def saved(run: Path) -> tuple[int, float]:
    """Images seen and training seconds of the newest checkpoint; 0 and 0 where there is none."""
    for folder in reversed(list_checkpoints(run)):
        try:
            return int(folder.name), float(json.loads((folder / "clock.json").read_text())["seconds"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return 0, 0.0


def share(budget: str, *, images: int, seconds: float) -> int:
    """Whole percent of `budget` (`500 images`, `10 minutes`) that are done, up to 100."""
    span = parse_span(budget)
    done = images / span.amount if span.unit == "images" else seconds / (60 * span.amount)
    return min(100, int(100 * done + 1e-6))


def best_row(rows: Sequence[Mapping[str, Any]], metric: str) -> Mapping[str, Any] | None:
    """The first row of a log with the best value of the metric."""
    scored = [row for row in rows if isinstance(row.get(metric), int | float)]
    sign = -1 if higher_is_better(metric) else 1
    return min(scored, key=lambda row: sign * row[metric], default=None)


def resampled_of(run: Path, metric: str) -> list[float | None] | None:
    """The metric over held-out pictures drawn again, where it was best; None where the log has it not."""
    found = best_row(read_stats(run), metric)
    return found.get(metric + RESAMPLED_SUFFIX) if found else None


def scores_of(run: Path, metric: str) -> list[dict[str, float]]:
    """The metric over training: `images`, training `seconds` and `score`, oldest first."""
    found, seconds = [], 0.0
    for row in read_stats(run):
        seconds = row.get("seconds") or seconds
        if isinstance(row.get(metric), int | float):
            found.append({"images": row["images"], "seconds": seconds, "score": row[metric]})
    return found


def wait_for(run: Path, *, until: float) -> None:
    """Waits until no process has the run folder. ValueError where one still has at `until`, of `time.monotonic`."""
    while (run / ".lock").exists():
        try:
            with lock_folder(run):
                return
        except ValueError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def _status_file(out: Path, name: str) -> Path:
    return out / "status" / f"{name}.json"
