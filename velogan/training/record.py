"""A run's `run.json`: where it came from, its data, and what the engine chose from which image on."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from pydantic import ValidationError

import velogan
from velogan.data.sets.cache import Domain
from velogan.data.sets.pair import Data
from velogan.data.sets.sources import Side
from velogan.engine.config import EngineConfig
from velogan.observe.machine import machine
from velogan.types import Decision


def new_record(origin: Mapping[str, Any], data: Data) -> dict[str, Any]:
    """Return the record of a new run. `origin` holds its `preset`, `command`, and what was `changed`."""
    return {
        "velogan": velogan.__version__,
        **origin,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "data": {name: {"digest": digest} for name, digest in data.digests.items()}
        | {"a": _counts(data.sources.a, data.a), "b": _counts(data.sources.b, data.b)},
    }


def with_engine(
    record: Mapping[str, Any],
    engine: EngineConfig,
    decisions: Sequence[Decision],
    *,
    images: int,
    reason: str,
    device: torch.device,
) -> dict[str, Any]:
    """Return the record with engine settings that hold from `images` seen on, and the `reason` for the change."""
    decided = [asdict(decision) for decision in decisions]
    chosen = {
        "from_images": images,
        "reason": reason,
        "engine": engine.model_dump(mode="json"),
        "decisions": decided,
        "machine": machine(device),
    }
    return {
        **record,
        "machine": chosen["machine"],
        "decisions": decided,
        "engines": [*record.get("engines", []), chosen],
    }


def engine_of(record: Mapping[str, Any]) -> EngineConfig | None:
    """Return the engine settings recorded last; None if there are none."""
    try:
        return EngineConfig.model_validate(record["engines"][-1]["engine"])
    except (KeyError, IndexError, TypeError, ValidationError):
        return None


def changed_domains(record: Mapping[str, Any], data: Data) -> list[str]:
    """List the domains whose images or annotations have changed since the run began; see `Data.changed`."""
    try:
        return data.changed({name: entry["digest"] for name, entry in record["data"].items()})
    except (KeyError, TypeError, AttributeError):
        return []


def _counts(side: Side, domain: Domain) -> dict[str, Any]:
    test = len(side.test.names) if side.test else 0
    held = len(side.validation.names) if side.validation else 0
    counts = {"train": len(domain), "validation": held, "test": test, "skipped": len(domain.skipped)}
    return {"name": side.name, **counts, "digest": domain.digest}


def decision_lines(decisions: Sequence[Decision]) -> list[str]:
    """Return the lines to print: the engine settings in one, then decisions on the data, precision and kernels."""
    of_engine = {decision.field: decision for decision in decisions if decision.field in EngineConfig.model_fields}
    enabled = [decision for decision in of_engine.values() if decision.value != "off"]
    values = [decision.field if decision.value == "on" else decision.value for decision in enabled]
    lines = [f"engine: {', '.join(values)} (reasons: run.json)"] if values else []
    for decision in decisions:
        if decision.field not in of_engine or decision.field in ("precision", "kernels"):
            lines.append(f"{decision.field}: {decision.value} ({decision.reason})")
    return lines
