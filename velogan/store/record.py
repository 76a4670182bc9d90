"""The record of a run besides its configuration: `run.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from velogan.files import write_text

NAME = "run.json"


def read_record(run: Path) -> dict[str, Any]:
    """Read the record of the run; empty if the file is missing or damaged."""
    try:
        record = json.loads((run / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def write_record(run: Path, record: Mapping[str, Any]) -> None:
    """Write the record of the run to its folder."""
    write_text(run / NAME, json.dumps(record, indent=1))
