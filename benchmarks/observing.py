"""The cost of observing a run: the share of an hour's training for statistics, log, sample grids and the rest.

    python -m benchmarks.observing DATA [PRESET] [IMAGES]

Trains in a temporary folder and measures the wall-clock time of every call that is not training. Costs of every step
are a share of this run. Rows and grids, whose number is the same in every run, are a share of a run of an hour.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from velogan.cli import main as velogan
from velogan.engine.trainer import Trainer
from velogan.evaluation.samples import Sampler
from velogan.evaluation.validation import Validation
from velogan.observe.statistics import Stats
from velogan.training.session import Session

_HOUR = 3600.0
_ROWS, _GRIDS = 200, 21  # in a run: every 0.5 %; every 5 %, and the first


def main(data: str, preset: str, images: int) -> None:
    seconds: dict[str, list[float]] = {}

    def timed(owner: Any, name: str, label: str) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return inner(*arguments, **named)
            finally:
                seconds.setdefault(label, []).append(time.perf_counter() - started)

        setattr(owner, name, call)

    timed(Stats, "add", "statistics")
    timed(Session, "_log_tick", "rows")
    timed(Sampler, "write", "grids")
    timed(Validation, "score", "validation")
    timed(Session, "_save", "checkpoints")
    timed(Trainer, "run", "all")
    with tempfile.TemporaryDirectory() as run:
        arguments = ["train", preset, "--data", data, "--out", f"{run}/run", "--images", str(images)]
        if velogan([*arguments, "--train.sample-every", "20 %", "--json"]):
            raise SystemExit(1)
    whole = sum(seconds["all"])
    shares = {"statistics": sum(seconds["statistics"]) / whole}
    for label, count in (("rows", _ROWS), ("grids", _GRIDS)):
        shares[label] = count * sum(seconds[label]) / len(seconds[label]) / _HOUR
    print(
        json.dumps(
            {
                "seconds": round(whole, 1),
                "calls": {label: len(found) for label, found in seconds.items()},
                "seconds_each": {label: round(sum(found) / len(found), 6) for label, found in seconds.items()},
                "share_of_an_hour": {label: round(share, 5) for label, share in shares.items()},
                "sum": round(sum(shares.values()), 5),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "fast", int(sys.argv[3]) if len(sys.argv) > 3 else 400)
