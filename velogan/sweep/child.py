"""One trial as a process of its own: `python -m velogan.sweep.child REQUEST`, with a line of JSON at the end.

The request is a file: `config`, `run`, `cores` (to stay on; none where they are empty), the `metric` to be measured at
each checkpoint, and `origin`, for the record. Where a `source` is named, a search finds the networks before, in the
folder of the `sweep`.
Exit codes are those of the command line; the reason of a failure is in the line's `error`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

LOCK_S = 60.0
"""How long to wait for the process that has the run folder: one that was lost may still be saving."""

_PARENT_DIES = 1  # PR_SET_PDEATHSIG, linux/prctl.h


def main(argv: list[str]) -> int:
    """Trains what the file named in `argv` says."""
    request = json.loads(Path(argv[0]).read_text())
    _follow_parent(request["parent"])
    if request["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, request["cores"])
    try:
        answer, code = _train(request), 0
    except ValueError as error:
        answer, code = {"error": str(error)}, 2
    except Exception as error:  # whatever it is, the other trials go on, and the table tells it
        text = str(error).strip().splitlines()
        answer, code = {"error": f"{type(error).__name__}: {text[0] if text else 'no text'}"}, 1
    print(json.dumps(answer))
    return code


def _follow_parent(parent: int) -> None:
    """Asks the kernel to stop this process, which then saves, when `parent` is gone: no orphan trains on."""
    with suppress(OSError, AttributeError):  # Linux alone has it
        ctypes.CDLL(None).prctl(_PARENT_DIES, signal.SIGTERM)
    if os.getppid() != parent:
        raise SystemExit("the sweep ended before this trial began")


def _train(request: Mapping[str, Any]) -> dict[str, Any]:
    from velogan.config import parse_config
    from velogan.evaluation.metric import Measured
    from velogan.observe.progress import Display
    from velogan.sweep.genotypes import Source
    from velogan.training.run import train

    run = Path(request["run"])
    _wait_for(run)
    scoring = partial(Measured, metric=request["metric"])
    with Display() as display:
        config, origin = parse_config(request["config"]), request["origin"]
        if request.get("source"):
            source = Source.model_validate(request["source"])
            threads = config.engine.threads
            found = source.find(Path(request["sweep"]), threads=threads, display=display, origin=origin)
            if found is None:  # somebody stopped it
                return {"finished": False, "images": 0}
            config = source.built(config, found)
        result = train(config, run, display=display, origin=origin, scoring=scoring)
    return {"finished": result.finished, "images": result.images_seen}


def _wait_for(run: Path) -> None:
    from velogan.store.lock import locked

    ends = time.monotonic() + LOCK_S
    while run.exists():
        try:
            with locked(run):
                return
        except ValueError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
