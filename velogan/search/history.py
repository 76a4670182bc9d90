"""The history of an architecture search: `architecture.jsonl`.

A line is `{"images": 1200, "shares": {"G_A": {"model.e.0": {"max_pool": 0.12, ...}, ...}, ...}}`: the softmax weight
(share) of each operation, by network and mixture.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

HISTORY_FILE = "architecture.jsonl"

Mixture = Mapping[str, float]
"""The share of each operation; their sum is 1."""

Shares = Mapping[str, Mapping[str, Mixture]]
"""Mixtures by network and name."""


class HistoryEntry(TypedDict):
    """A line of the file: images seen, and shares."""

    images: int
    shares: Shares


def read_architecture(run: Path) -> list[HistoryEntry]:
    """Read the lines in the folder `run`, oldest first; empty if there is no file.

    Skips damaged lines, as the last may be, and those with other mixtures or operations than the last.
    """
    try:
        lines = (Path(run) / HISTORY_FILE).read_bytes().splitlines()
    except OSError:
        return []
    entries = [entry for entry in map(_parse_line, lines) if entry]
    return [entry for entry in entries if _names(entry) == _names(entries[-1])]


def winner(mixture: Mixture) -> str:
    """Return the operation with the largest share, which is the derived one."""
    return max(mixture, key=lambda name: mixture[name])


def cell_kind(mixture: Mixture) -> str:
    """Return the kind of cell, e, r or d, that has these candidate operations."""
    return "e" if "max_pool" in mixture else "d" if "nearest" in mixture else "r"


def _names(entry: HistoryEntry) -> list[tuple[str, str, list[str]]]:
    return [
        (network, name, list(mixture))
        for network, mixtures in entry["shares"].items()
        for name, mixture in mixtures.items()
    ]


def _parse_line(line: bytes) -> HistoryEntry | None:
    try:
        row = json.loads(line)
        mixtures = [mixture for network in row["shares"].values() for mixture in network.values()]
        shares = [share for mixture in mixtures for share in mixture.values()]
        is_valid = isinstance(row["images"], int) and bool(shares) and all(mixtures) and all(map(_is_share, shares))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return HistoryEntry(images=row["images"], shares=row["shares"]) if is_valid else None


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1
