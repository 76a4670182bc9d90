"""What is recorded of a run beside its configuration: `run.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from velogan.files import write_text

NAME = "run.json"


def read_record(run: Path) -> dict[str, Any]:
    """What is recorded of the run; nothing where the file is missing or damaged."""
    try:
        found = json.loads((run / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write_record(run: Path, record: Mapping[str, Any]) -> None:
    """Keeps it in the run folder."""
    write_text(run / NAME, json.dumps(record, indent=1))
