"""One trial as a process of its own: `python -m velogan.sweep.child`, which `attempt` starts."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from velogan.config import parse_config
from velogan.engine.child import answer
from velogan.evaluation.metric import MetricValidation
from velogan.observe.progress import Display
from velogan.sweep.folder import wait_for
from velogan.training.run import train

LOCK_S = 60.0
"""How long to wait for the process that has the run folder: one that was lost may still be saving."""


def _train(request: Mapping[str, Any]) -> dict[str, Any]:
    """Trains `config` in the folder `run`, scored by the `metric` at each checkpoint; `origin` is for the record."""
    run = Path(request["run"])
    wait_for(run, until=time.monotonic() + LOCK_S)
    scoring = partial(MetricValidation, metric=request["metric"])
    with Display() as display:
        config, origin = parse_config(request["config"]), request["origin"]
        train(config, run, display=display, origin=origin, scoring=scoring)
    return {}


if __name__ == "__main__":
    sys.exit(answer(_train))
