"""The record of a run, `run.json`: its origin, its data, and each change of its engine settings."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from pydantic import ValidationError

from velogan.data.sets.cache import Domain
from velogan.data.sets.pair import TrainingData
from velogan.data.sets.sources import DomainSource
from velogan.engine.config import EngineConfig
from velogan.files import __version__
from velogan.observe.machine import describe_machine
from velogan.types import Decision


def create_record(origin: Mapping[str, Any], data: TrainingData) -> dict[str, Any]:
    """Return the record of a new run, including `origin` (see `run.train`)."""
    return {
        "velogan": __version__,
        **origin,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "data": {name: {"digest": digest} for name, digest in data.digests.items()}
        | {
            "a": _describe_domain(data.sources.a, data.a, data.held_out.get("a")),
            "b": _describe_domain(data.sources.b, data.b, data.held_out.get("b")),
        },
    }


def add_engine(
    record: Mapping[str, Any],
    engine: EngineConfig,
    decisions: Sequence[Decision],
    *,
    images: int,
    reason: str,
    device: torch.device,
) -> dict[str, Any]:
    """Return the record with new engine settings; `images`: number seen before them; `reason`: why they changed."""
    current = {"machine": describe_machine(device), "decisions": [asdict(decision) for decision in decisions]}
    entry = {"from_images": images, "reason": reason, "engine": engine.model_dump(mode="json"), **current}
    return {**record, **current, "engines": [*record.get("engines", []), entry]}


def read_engine(record: Mapping[str, Any]) -> EngineConfig | None:
    """Return the latest engine settings in the record; None if there are none, or they are invalid."""
    try:
        return EngineConfig.model_validate(record["engines"][-1]["engine"])
    except (KeyError, IndexError, TypeError, ValidationError):
        return None


def find_changed_domains(record: Mapping[str, Any], data: TrainingData) -> list[str]:
    """Return the domains and annotations that have changed since the run started; see `TrainingData.list_changed`."""
    try:
        return data.list_changed({name: entry["digest"] for name, entry in record["data"].items()})
    except (KeyError, TypeError, AttributeError):
        return []


def _describe_domain(source: DomainSource, train: Domain, held_out: Domain | None) -> dict[str, Any]:
    skipped = len(train.skipped) + (len(held_out.skipped) if held_out else 0)
    return {
        "name": source.name,
        "train": len(train),
        "validation": len(held_out) if held_out else 0,
        "test": len(source.test.names) if source.test else 0,
        "skipped": skipped,
        "digest": train.digest,
    }


def format_decisions(decisions: Sequence[Decision]) -> list[str]:
    """Return lines to print: enabled engine settings, then decisions outside the engine, precision and kernels."""
    fields = EngineConfig.model_fields
    enabled = [decision for decision in decisions if decision.field in fields and decision.value != "off"]
    values = [decision.field if decision.value == "on" else decision.value for decision in enabled]
    selected = [decision for decision in decisions if decision.field not in fields]
    selected += [decision for decision in decisions if decision.field in ("precision", "kernels")]
    lines = [f"engine: {', '.join(values)} (reasons: run.json)"] if values else []
    return lines + [f"{decision.field}: {decision.value} ({decision.reason})" for decision in selected]
